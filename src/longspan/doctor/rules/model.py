"""Texts of the configuration and of the model's files."""

from longspan.doctor.rules.rule import Rule

_VLLM = "https://github.com/vllm-project/vllm/issues/"

RULES: tuple[Rule, ...] = (
    # Shapes.
    Rule(
        id="heads", cause="heads-not-divisible", words="heads total_num_heads num_heads total_num_kv_heads", weight=0.95, launch_only=True,
        pattern=r"attention heads \(?\d*\)? ?must be divisible by|assert (?:self\.)?(?:total_)?num_(?:kv_|attention_|key_value_)?heads % (?:self\.)?(?:attn_)?tp(?:_size)?|"
        r"(?:num_heads|heads).{0,40}(?:not divisible by|must be divisible by) (?:the )?(?:tensor|tp|world)",
        example="Value error, Total number of attention heads (9) must be divisible by tensor parallel size (2).",
        source=_VLLM + "2652",
    ),
    Rule(
        id="experts", cause="experts-not-divisible", words="n_physical_experts experts num_experts expert", weight=0.93, launch_only=True,
        pattern=r"n_physical_experts\S* must be divisible by|(?:experts|num_experts)\b.{0,60}(?:must be|not) (?:evenly )?divisible|assert .*experts % |"
        r"greater than the number of experts",
        example="AssertionError: n_physical_experts=160 must be divisible by ep_size=12",
        source=_VLLM + "52435",
    ),
    Rule(
        id="quant-block", cause="fp8-block-not-divisible", words="divisible aligned min_thread_k group_size", weight=0.92, launch_only=True,
        pattern=r"not divisible by (?:weight quantization block|min_thread_[kn]|group_size|the (?:weight )?(?:quantization )?block|block_[nk])|size is not aligned with the quantized weight"
        r"|(?:input|output)_size_per_partition ?= ?\d+ is not divisible|size_[kn] = \d+ is not divisible by",
        example="ValueError: Weight output_partition_size = 192 is not divisible by weight quantization block_n = 128.",
        source=_VLLM + "45784",
    ),
    Rule(
        id="divide", cause="heads-not-divisible", kind="symptom", words="divisible", weight=0.55, launch_only=True,
        pattern=r"(?:AssertionError|ValueError): \d+ is not divisible by \d+", also=("fp8-block-not-divisible",),
        example="AssertionError: 9 is not divisible by 2",
        source="vllm 0.32.0 source: vllm/distributed/utils.py ensure_divisibility",
    ),
    Rule(
        id="no-pp", cause="pp-not-supported", words="pipeline supportspp", weight=0.94, launch_only=True,
        pattern=r"Pipeline parallelism is not supported for this model|does not (?:yet )?support pipeline parallel|implement the `SupportsPP`",
        example="NotImplementedError: Pipeline parallelism is not supported for this model.",
        source=_VLLM + "16231",
    ),
    # Parallel flags.
    Rule(
        id="parallel-flags", cause="parallel-config-invalid", weight=0.92, launch_only=True,
        words="nnodes world evenly parallel executor deepep fault data_parallel_rank headless configuration dcp_size eplb elastic data_parallel_size_local "
        "enable_expert_parallel node_rank data_parallel_external_lb microbatches data_parallel_size context pcp_size tp_size world_size tensor parallelism",
        pattern=r"nnodes > 1 can only be set|must evenly divide the total world size|World size \(\d+\) is larger than the number of available GPUs"
        r"|DeepEP kernels require EP ranks|Fault tolerance requires|data_parallel_rank \(\d+\) must be|data_parallel_size_local \(\d+\) must be"
        r"|must (?:not )?use --headless|Configuration mismatch detected for engine|must be divisible by dcp_size|EPLB requires|Elastic EP (?:is|with)"
        r"|Unrecognized distributed executor backend|data_parallel_external_lb can only be set|Invalid data parallel configuration|nnodes \(\d+\) must be"
        r"|enable_expert_parallel must be True|unexpected data parallel rank|Placement group bundle cannot have more than 1|node[_-]rank.{0,40}(?:must be|out of range|less than)"
        r"|(?:mp|multiprocessing) (?:distributed )?(?:executor )?backend.{0,60}(?:not supported|multiple nodes|requires)|offline data parallel mode is not supported"
        r"|world_size \(\d+\) (?:must be|is not) equal to|must equal (?:the )?world.?size|Non-MoE models do not support external data parallel|[Ee]xpert parallelism (?:is enabled|load balancing is only)|[Tt]ensor parallel size \(\d+\) cannot be larger than|(?:decode|prefill) context parallel|(?:dcp|pcp)_size \d+ (?:must|is)|data_parallel_size\w* \(\d+\) (?:must|is)",
        example="Value error, nnodes > 1 can only be set when distributed executor backend is mp, uni or external_launcher.",
        source="vllm 0.33.0 source: vllm/config/parallel.py",
    ),
    Rule(
        id="parallel-validation", cause="parallel-config-invalid", kind="symptom", words="parallelconfig", weight=0.7, launch_only=True,
        pattern=r"validation errors? for ParallelConfig",
        example="pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig",
        source="vllm 0.33.0 source: vllm/config/parallel.py",
    ),
    Rule(
        id="argparse", cause="parallel-config-invalid", words="argument arguments", weight=0.7, launch_only=True,
        pattern=r"(?:vllm|api_server\.py|vllm serve|__main__\.py).{0,40}error: (?:argument --?(?:tensor|pipeline|data|nnodes|node|distributed|master|headless|enable-expert)\S*|unrecognized arguments: .*--"
        r"(?:tensor|pipeline|data-par|nnodes|node|distributed|headless)\S*)",
        example="vllm serve: error: argument --distributed-executor-backend: invalid choice: 'slurm' (choose from ray, mp, uni)",
        source="vllm 0.33.0 source: vllm/engine/arg_utils.py",
    ),
    # Arguments that are not about parallelism.
    Rule(
        id="arguments", cause="arguments-invalid", weight=0.85, launch_only=True,
        words="input max_model_len max_num_batched_tokens unrecognized argument arguments quantization dtype parser gpu_memory_utilization "
        "speculative lora template block_size",
        pattern=r"Input should be .{0,160}\[type=(?:literal_error|greater_than|less_than|is_instance_of)|User-specified max_model_len \(\d+\) is greater than|max_num_batched_tokens \(?\S* ?(?:is smaller than|must be greater|=\s*\d+ is (?:smaller|less))"
        r"|(?:vllm|api_server\.py|vllm serve|__main__\.py)\b.{0,40}error: (?:argument -{1,2}(?!-|tensor|pipeline|data-par|nnodes|node|distributed|master|headless|enable-expert)\S+: |unrecognized arguments: (?!.*--(?:tensor|pipeline|data-par|nnodes|node|distributed|headless))|the following arguments are required)"
        r"|Unknown quantization method|Quantization method specified in the model config.{0,80}does not match|is not supported for quantization method"
        r"|Unknown dtype|(?:[Uu]nsupported|[Ii]nvalid) (?:dtype|kv[_-]cache[_-]dtype)|requires? --tool-call-parser|[Ii]nvalid (?:tool call|reasoning) parser"
        r"|gpu_memory_utilization\b.{0,40}(?:must be|should be|less than 1|greater than 0)|supplied chat template.{0,80}(?:not|neither)"
        r"|does not support LoRA|max_lora_rank.{0,20}must be|[Uu]nknown speculative (?:method|decoding)|[Uu]nsupported speculative method",
        example="Value error, User-specified max_model_len (65536) is greater than the derived max_model_len (max_position_embeddings=8192).",
        source="vllm 0.32.0 source: vllm/config/model.py, vllm/engine/arg_utils.py",
    ),
    Rule(
        id="validation", cause="arguments-invalid", kind="symptom", words="validation", weight=0.6, launch_only=True,
        pattern=r"\d+ validation errors? for (?:Model|Vllm|Cache|Scheduler|LoRA|Speculative|Compilation|Engine|Load|Device|KVTransfer|Structured\w*|Attention|Kernel)\w*",
        example="pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig",
        source="vllm 0.32.0 source: vllm/config", also=("insufficient-evidence",),
    ),
    # Architecture.
    Rule(
        id="architecture", cause="model-arch-unsupported", words="architectures transformers architecture vllm unrecognized", weight=0.93, launch_only=True,
        pattern=r"[Mm]odel architectures? .{0,200}(?:are|is) not supported|does not recognize this architecture|No model architectures are specified"
        r"|has no vLLM implementation|Unrecognized model in|Unrecognized configuration class|Transformers implementation is not compatible",
        example="ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
        source="https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
    ),
    Rule(
        id="model-type", cause="model-arch-unsupported", words="configuration_auto", weight=0.75, launch_only=True,
        pattern=r"configuration_auto\.py\", line \d+, in __getitem__",
        example='  File "/opt/transformers/models/auto/configuration_auto.py", line 1034, in __getitem__',
        source="https://github.com/huggingface/transformers/blob/main/src/transformers/models/auto/configuration_auto.py",
        question="Is the name in the KeyError below it the checkpoint's model_type?",
    ),
    Rule(
        id="inspect-failed", cause="model-arch-unsupported", kind="symptom", words="inspected", weight=0.6, launch_only=True,
        pattern=r"architectures? .{0,120}failed to be inspected", also=("worker-env-differs",),
        example="ValueError: Model architectures ['FooForCausalLM'] failed to be inspected. Please check the logs for more details.",
        source="vllm 0.32.0 source: vllm/model_executor/models/registry.py",
    ),
    Rule(
        id="trust", cause="trust-remote-code", words="trust_remote_code custom trust", weight=0.94, launch_only=True,
        pattern=r"pass(?:ing)? (?:the argument )?`trust_remote_code=True`|setting `trust_remote_code=True`|trust_remote_code=True` in LLM or|contains custom code which must be executed"
        r"|requires you to execute the (?:configuration|modeling|tokenizer)? ?file",
        example="ValueError: The repository m/x contains custom code which must be executed to correctly load the model.",
        source="vllm 0.33.0 source: vllm/transformers_utils/config.py:461",
    ),
    # Files.
    Rule(
        id="path-as-repo", cause="model-path-missing", decide="model_path", words="repo hfvalidationerror repository model identifier load path", weight=0.93, launch_only=True,
        pattern=r"[Rr]epo id must (?:be in the form|use alphanumeric)|HFValidationError|Invalid repository ID or local directory|"
        r"(?:^|[\s'\"])(?:/|\./|~)\S*['\"]? is not a local folder and is not a valid model identifier|(?:model|[Mm]odel) path \S+ does not exist|"
        r"(?:OSError|ValueError): (?:Can't load|Incorrect path).{0,80}['\"]?/\S+",
        example="huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/m'.",
        source=_VLLM + "12035", question="`ls -la PATH` on every node, inside the container.",
    ),
    Rule(
        id="path-not-found", cause="model-path-missing", decide="model_path", words="directory config weights named format", weight=0.8, launch_only=True,
        pattern=r"(?:FileNotFoundError|OSError): .*No such file or directory: ?['\"](?!/dev/shm|/tmp)\S*(?:model|config\.json|safetensors|tokenizer|/hub/|weights)\S*"
        r"|/\S+ does not appear to have a file named|Cannot find any model weights with|Error no file named .{0,80}found in directory|No supported config format found|config\.json.{0,60}(?:not found|does not exist)",
        example="OSError: /models/llama does not appear to have a file named config.json.",
        source="https://github.com/gpustack/gpustack/issues/815",
    ),
    Rule(
        id="hf-gated", cause="hf-auth", words="gated gatedrepoerror repositorynotfounderror unauthorized authenticated client token restricted", weight=0.93, launch_only=True,
        pattern=r"GatedRepoError|[Cc]annot access gated repo|trying to access a gated repo|Access to model \S+ is restricted"
        r"|40[13] (?:Client Error|Forbidden|Unauthorized).{0,120}(?:huggingface|hf\.co|resolve/|gated|Request ID)|Invalid user token|LocalTokenNotFoundError|Invalid token passed|User Access Token .{0,60}(?:expired|invalid)"
        r"|RepositoryNotFoundError: 40[134]|not in the authorized list|make sure to pass a token having permission|Invalid credentials in Authorization header"
        r"|If you are trying to access a private or gated repo",
        example="huggingface_hub.errors.GatedRepoError: 401 Client Error.",
        source="https://github.com/tenstorrent/tt-inference-server/issues/37",
    ),
    Rule(
        id="hf-unreachable", cause="hf-download-failed", weight=0.88, launch_only=True,
        words="cas huggingface hf localentrynotfounderror offlinemodeisenabled offline download hub xethub co snapshot_download hf_hub_offline",
        pattern=r"LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled|couldn't connect to ['\"]https://(?:huggingface|hf)"
        r"|(?:MaxRetryError|ConnectTimeout|ProxyError|ConnectionError|ReadTimeout\w*|NameResolutionError|SSLError|ConnectError|Failed to resolve).{0,300}(?:huggingface|hf\.co|hf-mirror|modelscope)"
        r"|(?:huggingface|hf\.co|hf-mirror|xethub).{0,300}(?:Max retries exceeded|timed out|Connection refused|Network is unreachable|[Nn]ame or service not known|name resolution|50[0234] Server Error"
        r"|Too Many Requests)|(?:50[0234] Server Error|429 Client Error).{0,120}(?:huggingface|hf\.co)|fails? to download the model|CAS service error(?!.*No space)"
        r"|Cannot find the requested files in the (?:disk cache|local cache)|(?:download|Download)\w* (?:of )?(?:the )?model.{0,40}failed",
        example="huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has been disabled.",
        source="https://github.com/ai-dynamo/dynamo/issues/4941",
    ),
    Rule(
        id="corrupt", cause="weights-corrupt", weight=0.94, launch_only=True,
        words="deserializing safetensorerror headertoolarge lfs load pytorchstreamreader metadataincompletebuffer incomplete badzipfile invalidheaderdeserialization corrupt corrupted checksum "
        "initialized magic unpicklingerror truncated eof consistency",
        pattern=r"SafetensorError(?!.*(?:[Nn]o space|StorageFull))|Error while deserializing header|HeaderTooLarge|HeaderTooSmall|MetadataIncompleteBuffer|InvalidHeader(?:Deserialization|Length|Start)|incomplete metadata"
        r"|invalid load key|UnpicklingError|PytorchStreamReader failed|BadZipFile|git-lfs pointer|version https://git-lfs|(?:weight|shard|checkpoint|safetensors|file)\S*.{0,40}(?:is )?(?:corrupt|truncated)"
        r"|(?:sha256|checksum).{0,30}mismatch|[Ff]ollowing weights were not initialized from checkpoint|GGUF magic invalid|Unable to load weights from pytorch checkpoint|Consistency check failed: file should be of size|unexpected EOF, expected \d+ more bytes",
        example="safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
        source="https://github.com/gpustack/gpustack/issues/815", question="Compare size and sha256 of the shard on this node with the hub's.",
    ),
    Rule(
        id="weight-shape", cause="weights-corrupt", kind="symptom", words="size eoferror jsondecodeerror", weight=0.5, launch_only=True,
        pattern=r"size mismatch for \S+: copying a param|EOFError: Ran out of input|JSONDecodeError: ",
        example="RuntimeError: size mismatch for model.embed_tokens.weight: copying a param with shape",
        source="https://github.com/hiyouga/LlamaFactory/issues/327",
    ),
)  # fmt: skip
