from gossip_hosts_head import RULE, end, train, worker, x

worker.init_shared_params([x], RULE)
train(100)
end()
