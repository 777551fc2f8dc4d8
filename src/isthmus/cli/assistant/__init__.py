"""``isthmus mcp``: questions of an assistant, answered over the Model Context Protocol on standard streams, read only.

What belongs here: five questions and the form of their answers. What never does: a write of any kind, a question that
names a table or a file, or the value of a Secret.

    command.py    the command, and which processes are asked
    server.py     the tools as the official SDK wants them: names, descriptions, arguments
    questions.py  facts and flows → answers. Pure
    answers.py    answers as bounded JSON: cut at rows, with secrets and control characters replaced. Pure
"""
