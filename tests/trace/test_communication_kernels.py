"""Kernel names as traces and public sources have them: which communicate, and what they carry out."""

from __future__ import annotations

import pytest

from gpuscope.trace.kernel_categories import base_name, qualified_name, words
from gpuscope.trace.kinds import collective_op, is_communication_kernel

COMMUNICATION = [
    # NCCL and RCCL
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
    ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "all_reduce"),
    ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", "all_gather"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", ""),
    ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", ""),
    # MSCCL++
    ("void mscclpp::collective::allreducePacket<__half>(__half*)", "all_reduce"),
    ("void mscclpp::collective::allgatherFullmesh2<false>(void*)", "all_gather"),
    ("void mscclpp::executionKernel<__half, mscclpp::LL16Packet>(int, __half*)", ""),
    # DeepEP and what stands beside it
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "all_to_all"),
    ("void deep_ep::intranode::combine<__nv_bfloat16, (int)8, (int)768>(__nv_bfloat16 *)", "all_to_all"),
    ("void deep_ep::intranode::cached_notify_combine<8>(void**)", "all_to_all"),
    ("void deep_ep::internode_ll::combine<(bool)0, (int)6144, (int)11, (int)4>(void *, void *)", "all_to_all"),
    ("void primus_turbo::deep_ep::intranode::notify_dispatch<8>(int const*, int*)", "all_to_all"),
    ("void deep_ep::intranode::barrier<2>(int**, int)", "barrier"),
    ("void hybrid_ep::dispatch_kernel<Config>(hybrid_ep::dispatch_kernel_param_t<uint8_t>)", "all_to_all"),
    ("EpDispatchIntraNodeKernel_bf16", "all_to_all"),
    ("void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<8, true>(int const*)", "all_to_all"),
    # Libraries by their namespace: DeepSeek's own, DeepEP V2, UCCL-EP, one that nobody has heard of; pplx by its names
    ("void dpsk::ep::internode::dispatch<false, 8, false, 65536>(int4*, float*)", "all_to_all"),
    ("void dpsk::ep::internode::combine<8, __nv_bfloat16>(int4*)", "all_to_all"),
    ("void dpsk::ep::internode::notify_dispatch<8>(int const*)", "all_to_all"),
    ("void deep_ep::elastic::hybrid_dispatch_impl<1, 2>(int)", "all_to_all"),
    ("void deep_ep::elastic::combine_impl<1, 2>(int)", "all_to_all"),
    ("void deep_ep::elastic::barrier_impl<1>(int)", "barrier"),
    ("void deep_ep::elastic::all_gather_impl<1>(int)", "all_gather"),
    ("void deep_ep::elastic::engram_fetch_impl<1>(int)", ""),
    ("void uccl::internode::dispatch<false, 4>(int4*)", "all_to_all"),
    ("_ZN4uccl12internode_ll7combineILb1EEEvPv", "all_to_all"),
    ("void acme_ep::combine_v3_kernel<8>(float*)", "all_to_all"),
    ("void a2a_dispatch_send_kernel<true, 16ul, 8ul>(unsigned long)", "all_to_all"),
    ("void mori::moe::EpCombineInterNodeKernel<__hip_bfloat16>(Args)", "all_to_all"),
    ("void nvshmem::quiet_kernel(int)", ""),
    # TransformerEngine userbuffers
    ("void userbuffers_fp16_sum_inplace_gpu_rw<2>(int, int, int)", "all_reduce"),
    ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int, int, int)", "all_gather"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int, int, int)", "reduce_scatter"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8, __nv_fp8_e4m3>(int, int)", "reduce_scatter"),
    ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send"),
    ("kuserbuffers_pushrecv(int, int, int*, int*, int)", "recv"),
    # one-shot and two-shot all-reduce
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)", "all_reduce"),
    ("void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)", "all_reduce"),
    ("void (anonymous namespace)::all_reduce_one_shot_push_kernel<__half, 4u, true>(AllReducePushData)", "all_reduce"),
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>("
        "flashinfer::trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)",
        "all_reduce",
    ),
    (
        "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2, __nv_bfloat16, true>(P)",
        "all_reduce",
    ),
    ("void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>(__nv_bfloat16*)", "all_reduce"),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(AllReduceParams)", "all_reduce"),
    ("ar_fusion::moe::moefinalize_allreduce_fusion_kernel_oneshot_lamport<bf16,8,false,true>(P)", "all_reduce"),
    (
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half,4>, true>, __half>(P)",
        "all_reduce",
    ),
    ("void aiter::allgather_lastdim<__hip_bfloat16, 8>(aiter::RankData*)", "all_gather"),
    # PyTorch symmetric memory; nsys writes <unnamed>
    ("void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, (int)16>(T1 *, unsigned long)", "all_reduce"),
    ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*)", "all_gather"),
    (
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
        "all_reduce",
    ),
    ("void one_shot_all_reduce_kernel<float, 16, 8>(float**, float*)", "all_reduce"),
    ("c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int, int, int)", "barrier"),
    ("c10d::nvshmem_extension::exchangeSplitAndOffset(long*, long*, int)", "all_to_all"),
    # NVSHMEM, HCCL
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "barrier"),
    ("nvshmemi_proxy_rma_entrypoint(void*, void*, rma_bytesdesc_t, int)", ""),
    ("void rdxn_on_stream_kernel<float, (rdxn_ops)2>(int, float*)", "all_reduce"),
    ("hcom_allReduce__503_0_1", "all_reduce"),
]
COMPUTE = [
    "hipMemcpyAsync",
    "__amd_rocclr_copyBuffer.kd",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float> > >(R)",
    "void at::native::vectorized_elementwise_kernel<4, AllReduceFunctor<float>, std::array<char*, 2ul> >(int)",
    # Inductor names the operators around: these add, and NCCL communicates beside them.
    "triton_poi_fused_add_all_reduce_0",
    "triton_red_fused__to_copy_all_gather_into_tensor_mul_3",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void uccl::layout::get_dispatch_layout<256>(long const*)",
    "void deep_ep::elastic::dispatch_copy_epilogue_impl<8>(int4*)",
    "void step::dispatch<float>(float*)",
    "void acme_ep::grouped_gemm<float>(float*)",
    "void lowPrecisionAllReducePreprocess_pack<float>(float*)",
    "void fbgemm_gpu::all_to_all_permute_kernel<float>(float*)",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)",
    "void thrust::cuda_cub::reduce::DeviceReduceKernel<int>(int)",
    "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*> >(long)",
    "void moe_dispatch<float>(float*)",
    "ampere_sgemm_128x64_tn",
    "all_reduction_free_kernel",
]


@pytest.mark.parametrize(("name", "op"), COMMUNICATION)
def test_communicates(name: str, op: str) -> None:
    assert is_communication_kernel(name)
    assert collective_op(name) == op


@pytest.mark.parametrize("name", COMPUTE)
def test_only_mentions_a_collective(name: str) -> None:
    assert not is_communication_kernel(name)


@pytest.mark.parametrize(
    ("kernel", "qualified"),
    [
        (
            "void at::native::(anonymous namespace)::softmax_warp_forward<float, 10>(float*, int)",
            "at::native::softmax_warp_forward",
        ),
        ("void <unnamed>::elementwise_kernel_with_index<int>(int)", "elementwise_kernel_with_index"),
        ("std::enable_if<(!(T7)), void>::type internal::gemvx::kernel<int, float>(T13)", "internal::gemvx::kernel"),
        (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_4GemmE",
            "ck::tensor_operation::device::kernel_grouped_conv_fwd_xdl_cshuffle_v3",
        ),
        ("_Z5saxpyPdS_", "saxpy"),
        ("attn_fwd.kd", "attn_fwd"),
        ("void f<decltype(g() -> int)>(int)", "f"),
        ("void at::native::elementwise_kernel<128, 4, at::nat", "at::native::elementwise_kernel"),
    ],
)
def test_a_kernels_own_identifier(kernel: str, qualified: str) -> None:
    assert qualified_name(kernel) == qualified
    assert base_name(kernel) == qualified.rpartition("::")[2]


def test_words_are_whole() -> None:
    assert words("LAMBStage1Functor") == "_lamb_stage1_functor_"
    assert words("operator()::{lambda()#1}") == "_operator_lambda_1_"
    assert words("RMSNorm") == "_rms_norm_"
