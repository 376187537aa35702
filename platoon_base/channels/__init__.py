"""The wires of the control plane: requests of workers and the controller's answers, over ZeroMQ or in one process.

A worker asks through `client`; the controller answers through `server`, which hands each message to the coordination
room. The job chooses the channel.
"""
