"""The controllers of the lab's small API server: plain loops that make true what objects ask for.

Each is level-triggered: it looks at what is there, never at what happened, so a lost or repeated event costs nothing.
They read the server's memory and write through its verbs, as any client would over HTTP.
"""

from isthmus.lab.controllers.loop import run

__all__ = ["run"]
