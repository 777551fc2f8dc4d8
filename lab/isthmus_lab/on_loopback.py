"""``python -m isthmus_lab.on_loopback WORDS…``: ``isthmus WORDS…``, in a lab that has none but loopback addresses."""

from isthmus.cli import main
from isthmus.model import addresses

if __name__ == "__main__":
    addresses.permit_loopback()
    main()
