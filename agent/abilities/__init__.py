"""What a model can do: its tools, one module for each kind. `agent/abilities/catalogue.py` says who gets which.

Everything that lasts or changes something is a todo of the graph, also what asks for leave first: an `ask` todo that
the work waits for. So it is seen, survives a crash, and is told of by a notice. What only reads answers at once.
"""
