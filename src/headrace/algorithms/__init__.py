"""The mathematics: pure functions on tensors, without config, logging or collectives."""
