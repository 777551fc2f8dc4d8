"""All controllers, running."""

from isthmus.lab.apiserver.api import Api


async def run(api: Api) -> None:
    """Run until cancelled."""
