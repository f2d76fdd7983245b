"""What the move from vLLM to SGLang does on the host, one step a file; the standard library of Python 3.8 or newer.

    install    SGLang into a virtual environment of its own, disk checked first
    ask        the same questions to a server: greedy text, log-probabilities, tool calls, reasoning
    compare    two servers' answers: how far they agree, and whether their form has changed
    gap        a client that asks all the time and notes every request that failed
    router     takes over the old server's port without a lost connection and passes on to the new one
    watch      looks after the new server for a while
    old        what the old server was (kept on the host), and starting it again as it was: the way back
    units      for a server that systemd ran: the new one starts at boot, the old one does not
    report     the page that tells what was done, as Markdown and HTML

Files of a session lie in its working folder; what outlives it (the record of the old server and the way back), in
`~/.turnout/migrations/PORT/`.
"""
