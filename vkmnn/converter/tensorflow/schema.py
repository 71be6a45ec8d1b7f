"""TensorFlow's messages, as far as a frozen graph needs them."""

from __future__ import annotations

from typing import Any

from vkmnn.converter.messages import Messages

_TABLE = """
GraphDef: node 1 NodeDef*; library 2 FunctionDefLibrary
NodeDef: name 1 string; op 2 string; input 3 string*; attr 5 Attr*
Attr: key 1 string; value 2 AttrValue
AttrValue: list 1 ListValue; s 2 bytes; i 3 int64; f 4 float; b 5 bool; type 6 int32; \
shape 7 TensorShapeProto; tensor 8 TensorProto; func 10 NameAttrList
ListValue: s 2 bytes*; i 3 int64*; f 4 float*; b 5 bool*; type 6 int32*; shape 7 TensorShapeProto*
NameAttrList: name 1 string
TensorShapeProto: dim 2 Dim*; unknown_rank 3 bool
Dim: size 1 int64
TensorProto: dtype 1 int32; tensor_shape 2 TensorShapeProto; tensor_content 4 bytes; \
float_val 5 float*; double_val 6 double*; int_val 7 int32*; int64_val 10 int64*; \
bool_val 11 bool*; half_val 13 int32*; uint32_val 16 uint32*; uint64_val 17 uint64*
FunctionDefLibrary: function 1 FunctionDef*
FunctionDef: signature 1 OpDef
OpDef: name 1 string
"""

Message = Any
"""A message of one of the classes, which protobuf creates at run time."""

message_class = Messages("vkmnn_tensorflow", _TABLE)
"""Returns the class of a message of the table."""
