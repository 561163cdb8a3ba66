"""Which layers of a model of transformers have experts, and the rules of their routers."""

import torch


def experts_of(model, layers, config):
    """Which of `layers` have experts, and their rules."""
    routers = [router_of(layer) for layer in layers]
    derived = {"sparse": [router is not None for router in routers]}
    router = next((router for router in routers if router is not None), None)
    if router is None:
        return derived
    if hasattr(router, "e_score_correction_bias"):
        return derived | sigmoid_router(router)
    bias = next((layer.mlp.e_score_correction_bias for layer in layers if hasattr(layer.mlp, "e_score_correction_bias")), None)
    if bias is not None:  # MiniMax M2's
        return derived | sigmoid_router(router, bias)
    if hasattr(router, "per_expert_scale"):
        router.per_expert_scale.fill_(1.0)
        sizes = {"num_experts": router.proj.out_features, "top_k": config.top_k_experts}
    else:
        sizes = {"num_experts": router.num_experts, "top_k": router.top_k}
    scores = router(torch.randn(7, config.hidden_size))[1]
    sums_to_one = bool((scores.sum(-1) - 1.0).abs().max() < 1e-12)
    all_chosen = sizes["top_k"] == sizes["num_experts"]
    return derived | {
        **sizes,
        # All experts' weights sum to 1 in any case.
        "norm_topk_prob": bool(getattr(router, "norm_topk_prob", True)) if all_chosen else sums_to_one,
        "router_loss": getattr(model, "router_aux_loss_coef", 0.0) if getattr(config, "output_router_logits", False) else 0.0,
    }


def router_of(layer):
    """Of a layer without experts None; Gemma 4's is next to the MLP."""
    return getattr(layer.mlp, "gate", getattr(layer.mlp, "router", getattr(layer, "router", None)))


def sigmoid_router(router, *bias):
    """DeepSeek V3's, GLM-4.5's and MiniMax M2's: what a choice's weights are of the scores, and how many groups there are and may be
    chosen from."""
    tokens = torch.randn(400, router.hidden_dim)
    logits, weights, chosen = router(tokens, *bias)
    sums, plain = weights.sum(-1), logits.sigmoid().gather(1, chosen)
    factor = (weights / plain).std(0).max()
    normalised = bool((sums - sums[0]).abs().max() < 1e-12)
    if not normalised and factor > 1e-12:
        raise ValueError("weights that are neither normalised nor a multiple of the scores")
    return {
        "num_experts": logits.shape[-1],
        "top_k": chosen.shape[-1],
        "norm_topk_prob": normalised,
        "routed_scaling_factor": (sums[0] if normalised else (weights / plain)[0, 0]).item(),
        "groups": [getattr(router, "num_group", 1), getattr(router, "topk_group", 1)],
        "router_loss": 0.0,  # these classes have none, whatever output_router_logits says
    }
