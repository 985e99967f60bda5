import torch

# Tiny matrices are slower on several threads, and much slower when other processes want the cores too.
torch.set_num_threads(1)
