"""Attribution methods, one file each: importing it registers the method, so a new one is one file and one line here."""

from aha.methods import aha, smooth, var  # noqa: F401
from aha.methods.activation_patching import caap  # noqa: F401
from aha.methods.attention import (  # noqa: F401
    attcat,
    attention_flow,
    attention_ig,
    bidirectional,
    grad_rollout,
    inflow,
    ixg_plus,
    legrad,
    libra_ixg_plus,
    mutex,
    raw_attention,
    rollout,
    transformer_attribution,
    transition_attention,
)
from aha.methods.base import METHODS, Method, check_fit, default_method, list_methods, load_method, method
from aha.methods.baselines import center_map, edge_map, random_map  # noqa: F401
from aha.methods.cam import ablation_cam, eigen_cam, finer_cam, grad_cam, grad_cam_pp, hires_cam, layer_cam, score_cam  # noqa: F401
from aha.methods.gradients import (  # noqa: F401
    gradient,
    gradient_shap,
    guided_backprop,
    guided_grad_cam,
    input_x_gradient,
    integrated_gradients,
    lrp,
)
from aha.methods.patch_order import (  # noqa: F401
    map_cells,
    mda,
    search,
)
from aha.methods.perturbation import (  # noqa: F401
    extremal_perturbation,
    kernel_shap,
    lime,
    occlusion,
    rise,
    shapley_sampling,
    simple_deletion,
    simple_insertion,
    tis,
    vit_cx,
)

__all__ = [
    "METHODS",
    "Method",
    "check_fit",
    "default_method",
    "list_methods",
    "load_method",
    "method",
]
