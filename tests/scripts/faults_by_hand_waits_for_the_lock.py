from faults_by_hand_train import worker

worker.lock(timeout=60)
print("got it")
