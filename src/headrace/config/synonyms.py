"""What other libraries of the field call a setting, and which key of a recipe does its work."""

_ROLLOUTS = "algorithm.num_generations (rollouts of each prompt)"
_STALENESS = "schedule.max_staleness of type 'async', counted in training steps"
_BATCH = "training.prompts_per_step, which counts prompts: a step takes prompts_per_step · num_generations completions"
_MICRO_BATCH = (
    "training.token_budget (tokens of a micro-batch); a step needs no accumulation count, its batch is training.prompts_per_step prompts"
)
_MINIBATCHES = "algorithm.num_minibatches (optimizer updates a step, each on its share of the batch); a batch is passed over once"
_KL = "algorithm.beta (weight of the KL divergence to the initial policy)"
_CLIP_LOW = "algorithm.surrogate.epsilon (the ratio is clipped below 1 - epsilon)"
_CLIP_HIGH = "algorithm.surrogate.epsilon_high (the ratio is clipped above 1 + epsilon_high)"
_LENGTH = "sampling.max_completion_length (tokens)"
_DECOUPLED = "algorithm.proximal: 'recompute' or 'loglinear'; or algorithm.name = 'areal' or 'a3po'"
_CAP = "algorithm.correction, for instance {type = 'mis', high = 5.0} (left out above) or {type = 'tis', high = 5.0} (cut)"
_MODEL = "model.name_or_path"
_RANK = "lora.rank"
_AUTOCAST = "training.autocast ('bfloat16' or 'none'); weights stay float32"

SYNONYMS = {
    "per_device_train_batch_size": _BATCH,
    "train_batch_size": _BATCH,
    "batch_size": _BATCH,
    "generation_batch_size": _BATCH,
    "rollout_batch_size": _BATCH,
    "gradient_accumulation_steps": _MICRO_BATCH,
    "micro_batch_size": _MICRO_BATCH,
    "max_tokens_per_mb": _MICRO_BATCH,
    "group_size": _ROLLOUTS,
    "n_samples": _ROLLOUTS,
    "num_return_sequences": _ROLLOUTS,
    "rollouts_per_example": _ROLLOUTS,
    "max_off_policy_steps": _STALENESS,
    "max_head_offpolicyness": _STALENESS,
    "max_trajectory_age_steps": _STALENESS,
    "max_policy_age": _STALENESS,
    "max_lag": _STALENESS,
    "staleness_threshold": _STALENESS + " (not as a share of the samples)",
    "max_concurrent_rollouts": "schedule.slots of type 'async', counted in groups",
    "queue_maxsize": "schedule.slots of type 'async', counted in groups",
    "weight_sync_steps": "nothing to set: weights are published after every training step",
    "num_iterations": _MINIBATCHES,
    "ppo_epochs": _MINIBATCHES,
    "steps_per_generation": _MINIBATCHES,
    "ppo_n_minibatches": _MINIBATCHES,
    "kl_coef": _KL,
    "kl_loss_coef": _KL,
    "kl_penalty_coef": _KL,
    "init_kl_coef": _KL,
    "kl_beta": _KL,
    "eps_clip": _CLIP_LOW,
    "clip_eps": _CLIP_LOW,
    "cliprange": _CLIP_LOW,
    "clip_ratio": _CLIP_LOW,
    "clip_ratio_low": _CLIP_LOW,
    "epsilon_low": _CLIP_LOW,
    "clip_ratio_high": _CLIP_HIGH,
    "eps_clip_higher": _CLIP_HIGH,
    "entropy_coef": "algorithm.entropy_coefficient",
    "entropy_coeff": "algorithm.entropy_coefficient",
    "use_decoupled_loss": _DECOUPLED,
    "prox_logp_method": _DECOUPLED,
    "behav_imp_weight_cap": _CAP,
    "behave_imp_weight_cap": _CAP,
    "loss_type": "algorithm.name ('grpo', 'dr_grpo', 'dapo', 'cispo', 'sapo', …); what the sum is divided by alone is "
    "algorithm.denominator",
    "clip_ratio_c": "algorithm.surrogate.delta (largest ratio of a token with a negative advantage)",
    "adv_estimator": "algorithm.advantage.type, or algorithm.name for the whole algorithm",
    "advantage_estimator": "algorithm.advantage.type, or algorithm.name for the whole algorithm",
    "tis_clip": _CAP,
    "vllm_importance_sampling_cap": _CAP,
    "vllm_importance_sampling_mode": _CAP,
    "rollout_is_threshold": _CAP,
    "overlong_filter": "algorithm.mask_truncated_completions",
    "overlong_reward_penalty": "algorithm.overlong_buffer_share (share of max_completion_length)",
    "teacher_model": "[teacher], with algorithm.distillation_coefficient",
    "opd_kl_coef": "algorithm.distillation_coefficient",
    "r": _RANK,
    "lora_r": _RANK,
    "lora_rank": _RANK,
    "lora_alpha": "lora.alpha",
    "lora_target_modules": "lora.target_modules",
    "lora_dropout": "nothing to set: an adapter has no dropout, as the engine's log-probabilities must be the trainer's",
    "use_peft": "nothing to set: a section [lora] is enough",
    "reward_funcs": "rewards.functions, for instance [{type = 'python', function = 'my_rewards.py:score'}]",
    "reward_weights": "the weight of each entry of rewards.functions",
    "max_new_tokens": _LENGTH,
    "max_response_length": _LENGTH,
    "response_length": _LENGTH,
    "model_name_or_path": _MODEL,
    "model_name": _MODEL,
    "dataset_name": "data.source, for instance {type = 'hub', name = 'openai/gsm8k'}",
    "dataset_path": "data.source, for instance {type = 'file', path = 'train.jsonl'}",
    "lr": "training.learning_rate",
    "lr_scheduler_type": "training.lr_scheduler",
    "warmup_ratio": "training.warmup_steps, counted in steps",
    "gradient_clipping": "training.max_grad_norm",
    "max_grad_clip": "training.max_grad_norm",
    "total_training_steps": "training.max_steps",
    "num_epochs": "training.num_train_epochs",
    "total_epochs": "training.num_train_epochs",
    "bf16": _AUTOCAST,
    "fp16": _AUTOCAST,
    "save_steps": "checkpoint.every_steps",
    "save_total_limit": "checkpoint.keep_last",
    "eval_steps": "evaluation.every_steps",
    "logging_steps": "nothing to set: every step is logged",
    "use_vllm": "nothing to set: completions come from the embedded engine, see [engine]",
    "max_num_seqs": "engine.max_concurrent_sequences",
}
"""Name elsewhere: what does its work here."""
