"""Constants of the objectives of post-training, equal for the runtime and all frameworks."""

from __future__ import annotations

# Clips of the ratio, below and above: PPO (arXiv 1707.06347, section 6.1), DAPO (2503.14476, section 4.1).
CLIP, CLIP_HIGH = 0.2, {"grpo": 0.2, "ppo": 0.2, "dapo": 0.28}
