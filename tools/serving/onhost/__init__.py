"""What is done to a model server on its own host: look at it, drain it, stop it, prove that it is gone, ask it a token.

    python3 -m onhost describe '{"pid": 4711}'
    python3 -m onhost stop '{"pid": 4711, "drain_s": 60, "url": "http://127.0.0.1:8000", "busy": ["..."]}'

One JSON object in, one out on stdout; exit code 1 with `error` and `hint`. It runs where the server runs, on Python 3.8
or newer, and imports only the standard library and itself: `tools.serving.operate` sends it there. It knows no engine:
what engines are called and which figures they show comes with the request.

    procs      /proc: processes, their trees, who listens where, which unit or container owns one
    gpus       which processes hold GPU memory, and how much is in use
    asking     HTTP on the loopback: a token, figures of the metrics page
    stopping   drain, stop, prove; and whether it comes back
"""
