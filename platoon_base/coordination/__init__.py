"""Every decision of a job, without input or output: messages in, replies and actions out.

The channels' `server` calls the `Coordinator` with each message, the controller with each worker
that has ended. Behind it each kind of decision is a state machine: `roster`, `center_election`,
`rendezvous`, `stop_vote` and `records`.
"""
