from gossip_hosts_head import RULE, end, kill_courier, rank, size, train, worker, x

worker.init_shared_params([x], RULE)
train(20)
worker.average_hosts()
for victim in (0, size - 1, 0):
    if rank == victim:
        kill_courier()
    train(100, 1 + victim)
    worker.average_hosts()  # by then what was under way has arrived
end()
