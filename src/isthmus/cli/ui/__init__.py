"""``isthmus ui``: a page with a live map of the clusterset, read only, served on loopback.

What belongs here: what the page shows, from what the processes serve on their admin sockets. What never does: a
decision of Isthmus, or a write of any kind.

    command.py   the command: which processes are asked
    sources.py   a process followed: its rows, its status, its counted calls and flows; the last known ones stay
    view.py      rows of all processes → what the page shows. Pure; its shape is the page's contract
    rates.py     counted calls → calls a second. Pure
    services.py  the part of it about services and their backends. Pure
    history.py   calls and changes of the last hour
    details.py   one service on demand: backends, policies, flows; explain, diagnose and Events by their commands
    server.py    HTTP on loopback: token, headers, the stream of changes
    static/      the page: plain modules, and the libraries that `make ui` bundles

A view is a value for one moment, so a view of another moment (a journal's) can be shown by the same page.
"""
