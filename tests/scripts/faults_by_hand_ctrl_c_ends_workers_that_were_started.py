from faults_by_hand_train import train

train(10**9)
