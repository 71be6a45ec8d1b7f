"""The messages of the Open Inference Protocol's gRPC service, built from a table.

Names and numbers are those of KServe's and Triton's interface; fields without a use here are left
out. The messages are in a pool of their own, so that clients in this process keep theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_MODEL = "name=1:string version=2:string"
_TENSOR = "name=1:string datatype=2:string shape=3:*int64"
_CHANGE = "repository_name=1:string model_name=2:string parameters=3:%ModelRepositoryParameter"

MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live=1:bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready=1:bool",
    "ModelReadyRequest": _MODEL,
    "ModelReadyResponse": "ready=1:bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name=1:string version=2:string extensions=3:*string",
    "ModelMetadataRequest": _MODEL,
    "ModelMetadataResponse": "name=1:string versions=2:*string platform=3:string "
    "inputs=4:*ModelMetadataResponse.TensorMetadata "
    "outputs=5:*ModelMetadataResponse.TensorMetadata",
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "InferParameter": "bool_param=1:?bool int64_param=2:?int64 string_param=3:?string "
    "double_param=4:?double uint64_param=5:?uint64",
    "InferTensorContents": "bool_contents=1:*bool int_contents=2:*int32 int64_contents=3:*int64 "
    "uint_contents=4:*uint32 uint64_contents=5:*uint64 fp32_contents=6:*float "
    "fp64_contents=7:*double bytes_contents=8:*bytes",
    "ModelInferRequest": "model_name=1:string model_version=2:string id=3:string "
    "parameters=4:%InferParameter inputs=5:*ModelInferRequest.InferInputTensor "
    "outputs=6:*ModelInferRequest.InferRequestedOutputTensor raw_input_contents=7:*bytes",
    "ModelInferRequest.InferInputTensor": f"{_TENSOR} parameters=4:%InferParameter "
    "contents=5:InferTensorContents",
    "ModelInferRequest.InferRequestedOutputTensor": "name=1:string parameters=2:%InferParameter",
    "ModelInferResponse": "model_name=1:string model_version=2:string id=3:string "
    "parameters=4:%InferParameter outputs=5:*ModelInferResponse.InferOutputTensor "
    "raw_output_contents=6:*bytes",
    "ModelInferResponse.InferOutputTensor": f"{_TENSOR} parameters=4:%InferParameter "
    "contents=5:InferTensorContents",
    "ModelStreamInferResponse": "error_message=1:string infer_response=2:ModelInferResponse",
    "ModelConfigRequest": _MODEL,
    "ModelConfigResponse": "config=1:ModelConfig",
    "ModelConfig": "name=1:string platform=2:string backend=17:string max_batch_size=4:int32 "
    "input=5:*ModelInput output=6:*ModelOutput instance_group=7:*ModelInstanceGroup "
    "dynamic_batching=11:ModelDynamicBatching parameters=14:%ModelParameter",
    "ModelInput": "name=1:string data_type=2:int32 dims=4:*int64",
    "ModelOutput": "name=1:string data_type=2:int32 dims=3:*int64",
    "ModelInstanceGroup": "count=2:int32",
    "ModelDynamicBatching": "preferred_batch_size=1:*int32 max_queue_delay_microseconds=2:uint64",
    "ModelParameter": "string_value=1:string",
    "ModelRepositoryParameter": "bool_param=1:?bool int64_param=2:?int64 string_param=3:?string "
    "bytes_param=4:?bytes",
    "RepositoryIndexRequest": "repository_name=1:string ready=2:bool",
    "RepositoryIndexResponse": "models=1:*RepositoryIndexResponse.ModelIndex",
    "RepositoryIndexResponse.ModelIndex": f"{_MODEL} state=3:string reason=4:string",
    "RepositoryModelLoadRequest": _CHANGE,
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": _CHANGE,
    "RepositoryModelUnloadResponse": "",
}
"""Message -> fields, name=number:type; `*` repeated, `%` a map from strings, `?` of a choice."""

_FIELD = re.compile(r"(\w+)=(\d+):([*%?]?)([\w.]+)")
_Proto = descriptor_pb2.FieldDescriptorProto


def _fields(message: Any, name: str, text: str) -> Iterator[Any]:
    """Yield the fields of a message; add the messages of its maps, and its choice."""
    for field, number, form, kind in _FIELD.findall(text):
        made = _Proto(name=field, number=int(number))
        made.label = _Proto.LABEL_REPEATED if form in ("*", "%") else _Proto.LABEL_OPTIONAL
        if form == "%":
            entry = message.nested_type.add(name=f"{field.title()}Entry")
            entry.options.map_entry = True
            entry.field.extend(_fields(entry, "", f"key=1:string value=2:{kind}"))
            kind = f"{name}.{entry.name}"
        if form == "?":
            if not message.oneof_decl:
                message.oneof_decl.add(name="parameter_choice")
            made.oneof_index = 0
        plain = getattr(_Proto, f"TYPE_{kind.upper()}", None)
        if plain is None:
            made.type, made.type_name = _Proto.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        else:
            made.type = plain
        yield made


def _built() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="vkmnn_open_inference.proto", package=PACKAGE, syntax="proto3"
    )
    there: dict[str, Any] = {}
    for name, text in MESSAGES.items():
        outer, _, inner = name.rpartition(".")
        place = there[outer].nested_type if outer else file.message_type
        there[name] = place.add(name=inner)
        there[name].field.extend(_fields(there[name], name, text))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }


MESSAGE: dict[str, Any] = _built()
"""Message classes by name."""
