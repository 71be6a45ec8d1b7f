"""TensorFlow's messages, as far as graphs, SavedModels and their variables need them."""

from __future__ import annotations

from typing import Any

from vkmnn.converter.messages import Messages

_TABLE = """
SavedModel: saved_model_schema_version 1 int64; meta_graphs 2 MetaGraphDef*
MetaGraphDef: meta_info_def 1 MetaInfoDef; graph_def 2 GraphDef; saver_def 3 SaverDef; \
signature_def 5 SignatureEntry*
MetaInfoDef: tags 4 string*
SaverDef: restore_op_name 3 string
SignatureEntry: key 1 string; value 2 SignatureDef
SignatureDef: inputs 1 TensorEntry*; outputs 2 TensorEntry*
TensorEntry: key 1 string; value 2 TensorInfo
TensorInfo: name 1 string; dtype 2 int32; tensor_shape 3 TensorShapeProto; coo_sparse 4 Nothing; \
composite_tensor 5 Nothing
Nothing: unread 536870911 bool
GraphDef: node 1 NodeDef*; library 2 FunctionDefLibrary
NodeDef: name 1 string; op 2 string; input 3 string*; attr 5 Attr*
Attr: key 1 string; value 2 AttrValue
AttrValue: list 1 ListValue; s 2 bytes; i 3 int64; f 4 float; b 5 bool; type 6 int32; \
shape 7 TensorShapeProto; tensor 8 TensorProto; func 10 NameAttrList
ListValue: s 2 bytes*; i 3 int64*; f 4 float*; b 5 bool*; type 6 int32*; \
shape 7 TensorShapeProto*; func 9 NameAttrList*
NameAttrList: name 1 string
TensorShapeProto: dim 2 Dim*; unknown_rank 3 bool
Dim: size 1 int64
TensorProto: dtype 1 int32; tensor_shape 2 TensorShapeProto; tensor_content 4 bytes; \
float_val 5 float*; double_val 6 double*; int_val 7 int32*; string_val 8 bytes*; \
int64_val 10 int64*; bool_val 11 bool*; half_val 13 int32*; uint32_val 16 uint32*; \
uint64_val 17 uint64*
FunctionDefLibrary: function 1 FunctionDef*
FunctionDef: signature 1 OpDef; node_def 3 NodeDef*; ret 4 NameEntry*; control_ret 6 NameEntry*
NameEntry: key 1 string; value 2 string
OpDef: name 1 string; input_arg 2 ArgDef*; output_arg 3 ArgDef*
ArgDef: name 1 string; type 3 int32
BundleHeader: num_shards 1 int32; endianness 2 int32
BundleEntry: dtype 1 int32; shape 2 TensorShapeProto; shard_id 3 int32; offset 4 int64; \
size 5 int64; crc32c 6 fixed32; slices 7 Nothing*
"""

Message = Any
"""A message of one of the classes, which protobuf creates at run time."""

message_class = Messages("vkmnn_tensorflow", _TABLE)
"""Returns the class of a message of the table."""
