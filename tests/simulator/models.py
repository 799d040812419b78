"""What a rank computes: layers of operators, with names of operators and kernels as real traces have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Work:
    """One operator and its kernel.

    Attributes:
        operator: What the host calls.
        inner: The operator within it that launches the kernel; empty if it launches the kernel itself.
        kernel: Name of the kernel.
        sort: What kind of work it is.
        weight: Its share of the time of a layer.
        node: Its node of autograd.
    """

    operator: str
    inner: str
    kernel: str
    sort: str
    weight: float
    node: str


@dataclass(frozen=True)
class Layer:
    """A module that is called once in each forward pass.

    Attributes:
        module: Its path in the model.
        forward: Its work, in order.
        backward: Its work in the backward pass, in order.
        parameters: Number of elements of its parameters.
        expert: Which of its forward work experts do; −1 if it has none.
    """

    module: str
    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    parameters: int
    expert: int = -1


#: What kinds of work there are.
SORTS = frozenset({"gemm", "attention", "elementwise", "norm", "convolution", "optimizer"})
#: How many kernels the backward pass of a kind of work has, where that is not one.
BACKWARD = {"gemm": 2, "convolution": 2}

_GEMMS = (
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_tn_align8>"
    "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_tn_align8::Params)",
)
_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>"
    "(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)"
)
_NORM_BACKWARD = (
    "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, false>"
    "(c10::BFloat16 const*, c10::BFloat16 const*, float const*, float const*, c10::BFloat16 const*, "
    "c10::BFloat16*, int)"
)
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
_GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::"
    "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int, at::native::GeluCUDAKernelImpl)"
)
_FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true, false, false, true, false>"
    "(pytorch_flash::Flash_fwd_params)"
)
_FLASH_BACKWARD = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, "
    "4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<64, 128, 128, 8, cutlass::bfloat16_t> >, false, true, "
    "false, false, true, true>(pytorch_flash::Flash_bwd_params)"
)
_CONVOLUTIONS = (
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_"
    "tensor16x8x8_kernel_cudnn",
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>"
    "(cudnn::ops::nchw2nhwc_params_t<float>, __half const*, __half*)",
)
_CONVOLUTION_BACKWARD = (
    "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4_nhwc_align4>"
    "(cutlass_tensorop_s1688wgrad_optimized_tf32_128x128_16x4_nhwc_align4::Params)",
    "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage3_kernel_cudnn",
)
_BATCH_NORM = "void cudnn::bn_fw_tr_1C11_singleread_fp16<512, true, 1, 1, 2, 1>(cudnnTensorStruct, __half const*)"
_BATCH_NORM_BACKWARD = "void cudnn::bn_bw_1C11_singleread_fp16<512, true, 1, 1, 2, 0>(float, float, float, float)"
_RELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar(at::TensorIteratorBase&, "
    "c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::{lambda()#1}>(int)"
)
_TRITON = "triton_poi_fused__to_copy_add_native_layer_norm_{}"


def _linear(module_weight: float, gemm: str) -> Work:
    return Work("aten::linear", "aten::addmm", gemm, "gemm", module_weight, "AddmmBackward0")


def _backward_of(forward: tuple[Work, ...]) -> tuple[Work, ...]:
    """Return the backward work of forward work: a product becomes two products, in one node of autograd."""
    kernels = {_NORM: _NORM_BACKWARD, _FLASH: _FLASH_BACKWARD, _BATCH_NORM: _BATCH_NORM_BACKWARD}
    back = []
    for work in reversed(forward):
        inner = {"gemm": "aten::mm", "convolution": "aten::convolution_backward"}.get(work.sort, work.operator)
        kernel = kernels.get(work.kernel, work.kernel)
        if work.sort == "gemm":
            other = kernel.replace("_tn", "_nt").replace("TNT", "NNT")
            back += [Work(work.node, inner, name, work.sort, work.weight, "") for name in (kernel, other)]
        elif work.sort == "convolution":
            back += [Work(work.node, inner, name, work.sort, work.weight, "") for name in _CONVOLUTION_BACKWARD]
        else:
            back.append(Work(work.node, inner, kernel, work.sort, 2 * work.weight, ""))
    return tuple(back)


def _layer(module: str, forward: tuple[Work, ...], parameters: int, expert: int = -1) -> Layer:
    return Layer(module, forward, _backward_of(forward), parameters, expert)


def transformer(layers: int, rng: np.random.Generator, *, experts: bool = False) -> tuple[Layer, ...]:
    """Return the blocks of a transformer, with experts in place of every feed-forward network if asked for."""
    gemm = str(rng.choice(_GEMMS))
    hidden = int(rng.choice([1024, 2048, 4096, 8192]))
    compiled = bool(rng.random() < 0.25)
    prefix = str(rng.choice(["model.layers", "transformer.h", "encoder.layer", "decoder.layers", "blocks"]))
    norm = Work("aten::layer_norm", "aten::native_layer_norm", _NORM, "norm", 0.25, "NativeLayerNormBackward0")
    if compiled:
        norm = Work(_TRITON.format(3), "", _TRITON.format(3), "norm", 0.25, "CompiledFunctionBackward")
    attention = Work(
        "aten::scaled_dot_product_attention",
        "aten::_flash_attention_forward",
        _FLASH,
        "attention",
        2.0,
        "ScaledDotProductFlashAttentionBackward0",
    )
    add = Work("aten::add", "", _ELEMENTWISE, "elementwise", 0.15, "AddBackward0")
    gelu = Work("aten::gelu", "", _GELU, "elementwise", 0.3, "GeluBackward0")
    forward = (norm, _linear(3, gemm), attention, _linear(1, gemm), add, norm, _linear(4, gemm), gelu, _linear(4, gemm))
    expert = 6 if experts else -1
    return tuple(_layer(f"{prefix}.{i}", forward, 12 * hidden * hidden, expert) for i in range(layers))


def convolutions(layers: int, rng: np.random.Generator) -> tuple[Layer, ...]:
    """Return the blocks of a residual network; early ones take longer, late ones have more parameters."""
    blocks = []
    for i in range(layers):
        size = float(rng.uniform(0.5, 2.0))
        convolution = Work(
            "aten::conv2d", "aten::cudnn_convolution", _CONVOLUTIONS[0], "convolution", 3 * size, "ConvolutionBackward0"
        )
        norm = Work(
            "aten::batch_norm", "aten::cudnn_batch_norm", _BATCH_NORM, "norm", 0.7 * size, "CudnnBatchNormBackward0"
        )
        relu = Work("aten::relu_", "aten::clamp_min_", _RELU, "elementwise", 0.4 * size, "ReluBackward0")
        add = Work("aten::add_", "", _ELEMENTWISE, "elementwise", 0.4 * size, "AddBackward0")
        forward = (convolution, norm, relu, convolution, norm, add)
        blocks.append(_layer(f"layer{1 + 4 * i // layers}.{i}", forward, int(7e4 * 4 ** (4 * i // layers))))
    return tuple(blocks)


def perceptron(layers: int, rng: np.random.Generator) -> tuple[Layer, ...]:
    """Return linear layers with activations between them."""
    gemm, width = str(rng.choice(_GEMMS)), int(rng.choice([512, 2048, 8192]))
    relu = Work("aten::relu", "aten::clamp_min", _RELU, "elementwise", 0.2, "ReluBackward0")
    return tuple(_layer(f"net.{2 * i}", (_linear(1, gemm), relu), width * width) for i in range(layers))


#: The optimizers: their class, and the work of a step.
OPTIMIZERS = {
    "AdamW": Work(
        "aten::_fused_adamw_",
        "",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
        "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool>",
        "optimizer",
        1.0,
        "",
    ),
    "SGD": Work(
        "aten::_foreach_add_",
        "",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, "
        "std::plus<float>, float>",
        "optimizer",
        1.0,
        "",
    ),
    "FusedAdam": Work(
        "multi_tensor_adam",
        "",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float, float, "
        "float, float, float, adamMode_t, float>(long, int volatile*, TensorListMetadata<4>)",
        "optimizer",
        1.0,
        "",
    ),
}
