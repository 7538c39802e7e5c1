"""What kernels and operators of real traces do, by their names."""

from __future__ import annotations

import pytest

from gpuscope.trace.kernel_categories import (
    encloses,
    is_optimizer_step,
    kernel_category,
    of_kernel,
    of_type,
    operator_category,
)

LAMBDA = "{lambda()#1}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int)"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        # «lamb» is no word of «lambda».
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel(at::TensorIterator&)::" + LAMBDA,
            "elementwise",
        ),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
            "direct_copy_kernel_cuda(at::TensorIteratorBase&)::" + LAMBDA,
            "copy",
        ),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda::" + LAMBDA, "copy"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)", "copy"),
        (
            "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(int)>(int)",
            "elementwise",
        ),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute__5x_cublas", "gemm"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64>(Params)", "gemm"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1", "gemm"),
        ("void gemv2T_kernel_val<int, int, float, float, float>(float)", "gemm"),
        ("void splitKreduce_kernel<float, float, float>(cublasSplitKParams<float>)", "gemm"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int>(int)", "copy"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128> >(P)", "attention"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<cutlass::gemm> > >(P)", "attention"),
        ("attn_fwd", "attention"),
        ("fmhaSm100fKernel_QkvE4m3OBfloat16H512PagedKv", "attention"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x64", "convolution"),
        ("void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3>(P)", "convolution"),
        ("igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x32", "convolution"),
        ("volta_scudnn_128x128_stridedB_splitK_medium_nn_v1", "convolution"),
        ("void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>(P)", "convolution"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(T)", "normalisation"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "normalisation"),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long)", "normalisation"),
        (
            "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, void "
            "at::native::templates::cuda::normal_and_transform<float>(int)>(int)",
            "elementwise",
        ),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)", "softmax"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float>(float*)", "softmax"),
        ("void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<>(A)", "embedding"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)", "optimizer"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >(R)",
            "reduction",
        ),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long> >(int*)", "indexing"),
        ("fused_moe_kernel", "moe"),
        ("triton_poi_fused_add_all_reduce_0", "triton_fused"),
        ("triton_per_fused__softmax_mul_7", "triton_fused"),
        ("triton_tem_fused_mm_3", "gemm"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("saxpy(double *, double *, double *, double, int)", "other"),
        ("aten::linear", "gemm"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "gemm"),
    ],
)
def test_by_the_kernels_name(name: str, category: str) -> None:
    assert kernel_category(name) == category


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aten::mm", "gemm"),
        ("aten::_scaled_mm", "gemm"),
        ("aten::_grouped_mm", "gemm"),
        ("aten::_scaled_dot_product_flash_attention_backward", "attention"),
        ("flash_attn::_flash_attn_forward", "attention"),
        ("FlashAttnFuncBackward", "attention"),
        ("aten::convolution_backward", "convolution"),
        ("ConvolutionBackward0", "convolution"),
        ("aten::cudnn_batch_norm_backward", "normalisation"),
        ("NativeLayerNormBackward0", "normalisation"),
        ("aten::linalg_vector_norm", "reduction"),
        ("aten::max", "reduction"),
        ("aten::clamp_min_", "elementwise"),
        ("aten::add_", "elementwise"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::_log_softmax_backward_data", "softmax"),
        ("aten::embedding_dense_backward", "embedding"),
        ("torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>", "embedding"),
        ("aten::_foreach_add_", "optimizer"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::copy_", "copy"),
        ("aten::_to_copy", "copy"),
        ("aten::cat", "copy"),
        ("aten::index_select", "indexing"),
        ("MyFunctionBackward", None),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", None),
        ("c10d::allreduce_", None),
    ],
)
def test_by_the_operator(name: str, category: str | None) -> None:
    assert operator_category(name) == category


def test_what_runs_inside_an_operator_is_its_own() -> None:
    assert encloses("aten::embedding")
    assert encloses("aten::conv2d")
    assert not encloses("aten::linear")
    assert not encloses("aten::_native_multi_head_attention"), "it projects its inputs with matrix products"


def test_the_optimizers_step_is_a_range() -> None:
    assert is_optimizer_step("Optimizer.step#AdamW.step")
    assert is_optimizer_step("optimizer step")
    assert not is_optimizer_step("Optimizer.zero_grad#AdamW.zero_grad")


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "tf32"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(P)", "tf32"),
        ("ampere_sgemm_128x64_tn", "fp32"),
        ("volta_sgemm_128x64_nt", "fp32"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "bf16"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN", "fp16"),
        ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "fp8"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_nn", "fp16"),
        ("some_kernel", None),
    ],
)
def test_precision_by_the_kernel(kernel: str, precision: str | None) -> None:
    assert of_kernel(kernel) == precision


def test_precision_by_the_input() -> None:
    assert [of_type(text) for text in ("c10::BFloat16", "c10::Half", "float", "c10::Float8_e4m3fn", "Scalar", "")] == [
        "bf16",
        "fp16",
        "fp32",
        "fp8",
        None,
        None,
    ]
