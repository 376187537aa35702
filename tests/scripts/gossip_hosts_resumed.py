from gossip_hosts_head import RULE, loss, say, train, worker, x

worker.init_shared_params([x], RULE)
say(x.tobytes().hex(), loss())
worker.barrier("all have begun")
train(50)
worker.barrier("trained")
worker.average_hosts()
worker.copy_to_local()
say(x.tobytes().hex(), loss())
worker.barrier("end")
