"""Caffe's messages.

The table has the fields that inference reads, of Caffe's own format and of SSD's. Fields of other
forks, whose numbers contradict each other, have separate numbers: text names them, and of binary
files with a `.prototxt` next to them only blobs are read.
"""

from __future__ import annotations

from typing import Any

from vkmnn.converter.messages import Messages

_TABLE = """
BlobShape: dim 1 int64*
BlobProto: num 1 int32; channels 2 int32; height 3 int32; width 4 int32; data 5 bytes*; \
shape 7 BlobShape; double_data 8 bytes*; raw_data_type 10 int32; raw_data 12 bytes*
FillerParameter: type 1 string =constant; value 2 float
NetState: phase 1 TRAIN,TEST =TEST; level 2 int32; stage 3 string*
NetStateRule: phase 1 TRAIN,TEST; min_level 2 int32; max_level 3 int32; stage 4 string*; \
not_stage 5 string*
NetParameter: name 1 string; layers 2 V1LayerParameter*; input 3 string*; input_dim 4 int32*; \
state 6 NetState; input_shape 8 BlobShape*; layer 100 LayerParameter*
ParamSpec: name 1 string
LayerParameter: name 1 string; type 2 string; bottom 3 string*; top 4 string*; param 6 ParamSpec*; \
blobs 7 BlobProto*; include 8 NetStateRule*; exclude 9 NetStateRule*; \
transform_param 100 TransformationParameter; argmax_param 103 ArgMaxParameter; \
concat_param 104 ConcatParameter; convolution_param 106 ConvolutionParameter; \
data_param 107 DataParameter; dummy_data_param 109 DummyDataParameter; \
eltwise_param 110 EltwiseParameter; exp_param 111 ExpParameter; \
hdf5_data_param 112 Hdf5DataParameter; image_data_param 115 ImageDataParameter; \
inner_product_param 117 InnerProductParameter; lrn_param 118 LrnParameter; \
memory_data_param 119 MemoryDataParameter; mvn_param 120 MvnParameter; \
pooling_param 121 PoolingParameter; power_param 122 PowerParameter; \
relu_param 123 ReluParameter; softmax_param 125 SoftmaxParameter; slice_param 126 SliceParameter; \
threshold_param 128 ThresholdParameter; python_param 130 PythonParameter; \
prelu_param 131 PreluParameter; spp_param 132 SppParameter; reshape_param 133 ReshapeParameter; \
log_param 134 LogParameter; flatten_param 135 FlattenParameter; \
reduction_param 136 ReductionParameter; embed_param 137 EmbedParameter; \
tile_param 138 TileParameter; batch_norm_param 139 BatchNormParameter; elu_param 140 EluParameter; \
bias_param 141 BiasParameter; scale_param 142 ScaleParameter; input_param 143 InputParameter; \
crop_param 144 CropParameter; parameter_param 145 ParameterParameter; \
recurrent_param 146 RecurrentParameter; swish_param 147 SwishParameter; \
clip_param 148 ClipParameter; permute_param 202 PermuteParameter; \
prior_box_param 203 PriorBoxParameter; detection_output_param 204 DetectionOutputParameter; \
norm_param 206 NormalizeParameter; bn_param - BnParameter; interp_param - InterpParameter; \
upsample_param - UpsampleParameter; shuffle_channel_param - ShuffleChannelParameter; \
relu6_param - ReluParameter; roi_pooling_param - RoiPoolingParameter
TransformationParameter: crop_size 3 uint32
DataParameter: batch_size 4 uint32
ImageDataParameter: batch_size 4 uint32
Hdf5DataParameter: batch_size 2 uint32
MemoryDataParameter: batch_size 1 uint32; channels 2 uint32; height 3 uint32; width 4 uint32
DummyDataParameter: data_filler 1 FillerParameter*; num 2 uint32*; channels 3 uint32*; \
height 4 uint32*; width 5 uint32*; shape 6 BlobShape*
InputParameter: shape 1 BlobShape*
ParameterParameter: shape 1 BlobShape
ArgMaxParameter: out_max_val 1 bool; top_k 2 uint32 =1; axis 3 int32
ConcatParameter: concat_dim 1 uint32 =1; axis 2 int32 =1
BatchNormParameter: use_global_stats 1 bool; eps 3 float =1e-5
BiasParameter: axis 1 int32 =1; num_axes 2 int32 =1
ConvolutionParameter: num_output 1 uint32; bias_term 2 bool =true; pad 3 uint32*; \
kernel_size 4 uint32*; group 5 uint32 =1; stride 6 uint32*; pad_h 9 uint32; pad_w 10 uint32; \
kernel_h 11 uint32; kernel_w 12 uint32; stride_h 13 uint32; stride_w 14 uint32; axis 16 int32 =1; \
dilation 18 uint32*
CropParameter: axis 1 int32 =2; offset 2 uint32*
EltwiseParameter: operation 1 PROD,SUM,MAX =SUM; coeff 2 float*
EluParameter: alpha 1 float =1
EmbedParameter: num_output 1 uint32; input_dim 2 uint32; bias_term 3 bool =true
ExpParameter: base 1 float =-1; scale 2 float =1; shift 3 float
FlattenParameter: axis 1 int32 =1; end_axis 2 int32 =-1
InnerProductParameter: num_output 1 uint32; bias_term 2 bool =true; axis 5 int32 =1; \
transpose 6 bool
LogParameter: base 1 float =-1; scale 2 float =1; shift 3 float
LrnParameter: local_size 1 uint32 =5; alpha 2 float =1; beta 3 float =0.75; \
norm_region 4 ACROSS_CHANNELS,WITHIN_CHANNEL; k 5 float =1
MvnParameter: normalize_variance 1 bool =true; across_channels 2 bool; eps 3 float =1e-9
PoolingParameter: pool 1 MAX,AVE,STOCHASTIC; kernel_size 2 uint32; stride 3 uint32 =1; \
pad 4 uint32; kernel_h 5 uint32; kernel_w 6 uint32; stride_h 7 uint32; stride_w 8 uint32; \
pad_h 9 uint32; pad_w 10 uint32; global_pooling 12 bool; round_mode 13 CEIL,FLOOR; \
ceil_mode - bool =true
PowerParameter: power 1 float =1; scale 2 float =1; shift 3 float
PreluParameter: channel_shared 2 bool
PythonParameter: module 1 string; layer 2 string
RecurrentParameter: num_output 1 uint32; expose_hidden 5 bool
ReductionParameter: operation 1 1:SUM,ASUM,SUMSQ,MEAN; axis 2 int32; coeff 3 float =1
ReluParameter: negative_slope 1 float
ReshapeParameter: shape 1 BlobShape; axis 2 int32; num_axes 3 int32 =-1
ScaleParameter: axis 1 int32 =1; num_axes 2 int32 =1; bias_term 4 bool
SliceParameter: slice_dim 1 uint32 =1; slice_point 2 uint32*; axis 3 int32 =1
SoftmaxParameter: axis 2 int32 =1
SppParameter: pyramid_height 1 uint32; pool 2 MAX,AVE,STOCHASTIC
SwishParameter: beta 1 float =1
ClipParameter: min 1 float; max 2 float
ThresholdParameter: threshold 1 float
TileParameter: axis 1 int32 =1; tiles 2 int32
PermuteParameter: order 1 uint32*
NormalizeParameter: across_spatial 1 bool =true; scale_filler 2 FillerParameter; \
channel_shared 3 bool =true; eps 4 float =1e-10
PriorBoxParameter: min_size 1 float*; max_size 2 float*; aspect_ratio 3 float*; \
flip 4 bool =true; clip 5 bool; variance 6 float*; img_size 7 uint32; img_h 8 uint32; \
img_w 9 uint32; step 10 float; step_h 11 float; step_w 12 float; offset 13 float =0.5
NonMaximumSuppressionParameter: nms_threshold 1 float =0.3; top_k 2 int32; eta 3 float =1
DetectionOutputParameter: num_classes 1 uint32; share_location 2 bool =true; \
background_label_id 3 int32; nms_param 4 NonMaximumSuppressionParameter; \
code_type 6 1:CORNER,CENTER_SIZE,CORNER_SIZE; keep_top_k 7 int32 =-1; \
variance_encoded_in_target 8 bool; confidence_threshold 9 float
BnParameter: bn_mode - LEARN,INFERENCE; eps - float =1e-5; var_eps - float; std_epsilon - float; \
frozen - bool
InterpParameter: height 1 int32; width 2 int32; zoom_factor 3 int32 =1; shrink_factor 4 int32 =1; \
pad_beg 5 int32; pad_end 6 int32
UpsampleParameter: scale 1 uint32 =2; scale_h 2 uint32; scale_w 3 uint32; pad_out_h 4 bool; \
pad_out_w 5 bool; upsample_h 6 uint32; upsample_w 7 uint32; stride - uint32
ShuffleChannelParameter: group 1 uint32 =1
RoiPoolingParameter: pooled_h 1 uint32; pooled_w 2 uint32; spatial_scale 3 float =1
V0LayerParameter: name 1 string; type 2 string; num_output 3 uint32; biasterm 4 bool =true; \
pad 7 uint32; kernelsize 8 uint32; group 9 uint32 =1; stride 10 uint32 =1; \
pool 11 MAX,AVE,STOCHASTIC; local_size 13 uint32 =5; alpha 14 float =1; beta 15 float =0.75; \
batchsize 19 uint32; cropsize 20 uint32; k 22 float =1; blobs 50 BlobProto*; \
concat_dim 65 uint32 =1
V1LayerParameter: layer 1 V0LayerParameter; bottom 2 string*; top 3 string*; name 4 string; \
type 5 NONE,ACCURACY,BNLL,CONCAT,CONVOLUTION,DATA,DROPOUT,EUCLIDEAN_LOSS,FLATTEN,HDF5_DATA,\
HDF5_OUTPUT,IM2COL,IMAGE_DATA,INFOGAIN_LOSS,INNER_PRODUCT,LRN,MULTINOMIAL_LOGISTIC_LOSS,POOLING,\
RELU,SIGMOID,SOFTMAX,SOFTMAX_LOSS,SPLIT,TANH,WINDOW_DATA,ELTWISE,POWER,SIGMOID_CROSS_ENTROPY_LOSS,\
HINGE_LOSS,MEMORY_DATA,ARGMAX,THRESHOLD,DUMMY_DATA,SLICE,MVN,ABSVAL,SILENCE,CONTRASTIVE_LOSS,EXP,\
DECONVOLUTION,BN,UPSAMPLE,PRELU,PYTHON,DENSE_IMAGE_DATA; blobs 6 BlobProto*; \
concat_param 9 ConcatParameter; convolution_param 10 ConvolutionParameter; \
data_param 11 DataParameter; hdf5_data_param 13 Hdf5DataParameter; \
image_data_param 15 ImageDataParameter; inner_product_param 17 InnerProductParameter; \
lrn_param 18 LrnParameter; pooling_param 19 PoolingParameter; power_param 21 PowerParameter; \
memory_data_param 22 MemoryDataParameter; argmax_param 23 ArgMaxParameter; \
eltwise_param 24 EltwiseParameter; threshold_param 25 ThresholdParameter; \
dummy_data_param 26 DummyDataParameter; relu_param 30 ReluParameter; \
slice_param 31 SliceParameter; include 32 NetStateRule*; exclude 33 NetStateRule*; \
mvn_param 34 MvnParameter; transform_param 36 TransformationParameter; \
softmax_param 39 SoftmaxParameter; exp_param 41 ExpParameter; param 1001 string*; \
bn_param - BnParameter; upsample_param - UpsampleParameter; prelu_param - PreluParameter; \
python_param - PythonParameter
V0Weights: name 1 string; blobs 50 BlobProto*
V1Weights: layer 1 V0Weights; name 4 string; blobs 6 BlobProto*
LayerWeights: name 1 string; blobs 7 BlobProto*
NetWeights: layers 2 V1Weights*; layer 100 LayerWeights*
"""

Message = Any
"""A message of one of the classes, which protobuf creates at run time."""

message_class = Messages("vkmnn_caffe", _TABLE)
"""Returns the class of a message of the table."""
