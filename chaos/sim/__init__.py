"""A whole fleet in one thread and in virtual time, replayed from a seed.

Routers run their real code from the pipeline down to the bytes on a connection; agents run the real picker, gate and
capacity report over the simulated engine. Only sockets, clocks and the processes themselves are simulated.
"""
