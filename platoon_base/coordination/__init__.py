"""Every decision of a job, without input or output: messages come in, replies and actions go out.

The channels' `server` calls the `Coordinator` with each message, the controller calls it with each worker that has
ended. Behind that face each kind of decision is a state machine of its own: the `roster`, the `center_election`, the
`rendezvous`, the `stop_vote`, the `records`.
"""
