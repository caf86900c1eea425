"""All of Triton's operations as one table. Importing this needs triton, but no GPU."""

from ninfer_engine.kernels.dispatch import Kernels
from ninfer_engine.kernels.triton import (
    attention_parts,
    causal_conv,
    experts,
    gated_delta,
    gated_delta_step,
    norms,
    paged_attention,
    rotary,
    sampling,
    swiglu,
)

TRITON = Kernels(
    rms_norm=norms.rms_norm,
    add_rms_norm=norms.add_rms_norm,
    gated_rms_norm=norms.gated_rms_norm,
    apply_rotary_=rotary.apply_rotary_,
    swiglu=swiglu.swiglu,
    route=experts.route,
    expert_mlp=experts.expert_mlp,
    conv_prefill=causal_conv.conv_prefill,
    conv_decode=causal_conv.conv_decode,
    gated_delta_prefill=gated_delta.gated_delta_prefill,
    gated_delta_decode=gated_delta_step.gated_delta_decode,
    store_kv=attention_parts.store_kv,
    prefill_attention=paged_attention.prefill_attention,
    decode_attention=paged_attention.decode_attention,
    sample=sampling.sample,
)
