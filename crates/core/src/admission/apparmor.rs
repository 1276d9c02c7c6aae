//! Whether the AppArmor profiles a pod asks for can be enforced.

use krablet_pod::api::{AppArmorProfile, Pod, PodSpec};
use krablet_pod::{containers, marks};

use super::{AdmissionInputs, Rejection, Verdict};

const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(super) fn apparmor(inputs: &AdmissionInputs<'_>) -> Verdict {
    let pod = inputs.pod;
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    // What runs or has run has its profile.
    if !matches!(phase, None | Some("" | "Pending")) || !is_asked_for(pod) {
        return Verdict::Admit;
    }
    let why = if !inputs.settings.apparmor {
        "AppArmor is not enabled on the host".to_owned()
    } else if let Some(profile) = first_nameless(pod) {
        format!("invalid empty AppArmor profile name: {:?}", shown(&profile))
    } else {
        return Verdict::Admit;
    };
    let message = format!("Cannot enforce AppArmor: {why}");
    Verdict::Reject(Rejection::new("AppArmor", message))
}

/// Any profile but Unconfined, of the pod, a container or an annotation.
fn is_asked_for(pod: &Pod) -> bool {
    let Some(spec) = pod.spec.as_ref() else {
        return false;
    };
    let of_pod = spec.security_context.as_ref();
    let of_pod = of_pod.and_then(|s| s.app_armor_profile.as_ref());
    let mut profiles = of_pod
        .into_iter()
        .chain(own_profiles(spec).flat_map(|(_, p)| p));
    if profiles.any(|p| p.type_ != "Unconfined") {
        return true;
    }
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut of_containers = annotations.filter(|(key, _)| key.starts_with(ANNOTATION));
    of_containers.any(|(_, value)| value != "unconfined")
}

/// Containers of every kind with their own profiles.
fn own_profiles(spec: &PodSpec) -> impl Iterator<Item = (&str, Option<&AppArmorProfile>)> {
    let ordinary =
        containers::all(spec).map(|c| (&c.container.name, &c.container.security_context));
    let ephemeral = containers::ephemeral_containers(spec)
        .iter()
        .map(|c| (&c.name, &c.security_context));
    ordinary.chain(ephemeral).map(|(name, context)| {
        let profile = context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
        (name.as_str(), profile)
    })
}

/// The profile of a container: its own counts before its annotation, which static pods may still
/// have, and that before the pod's.
pub fn app_armor_profile(
    pod: &Pod,
    container: &str,
    own: Option<&AppArmorProfile>,
) -> Option<AppArmorProfile> {
    let of_pod = || pod.spec.as_ref()?.security_context.as_ref();
    own.cloned()
        .or_else(|| annotated(pod, container))
        .or_else(|| of_pod()?.app_armor_profile.clone())
}

/// The first container's profile that is a local one without a name.
fn first_nameless(pod: &Pod) -> Option<AppArmorProfile> {
    own_profiles(pod.spec.as_ref()?)
        .filter_map(|(name, own)| app_armor_profile(pod, name, own))
        .find(|profile| {
            let name = profile.localhost_profile.as_deref().unwrap_or_default();
            profile.type_ == "Localhost" && name.trim().is_empty()
        })
}

fn annotated(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    let value = marks::annotation(pod, &format!("{ANNOTATION}{container}"))?;
    let profile = |type_: &str, localhost_profile| AppArmorProfile {
        type_: type_.into(),
        localhost_profile,
    };
    match value {
        "runtime/default" => Some(profile("RuntimeDefault", None)),
        "unconfined" => Some(profile("Unconfined", None)),
        _ => {
            let name = value.strip_prefix("localhost/")?;
            Some(profile("Localhost", Some(name.to_owned())))
        }
    }
}

/// The profile as the API's types print themselves.
fn shown(profile: &AppArmorProfile) -> String {
    let name = match &profile.localhost_profile {
        Some(name) => format!("*{name}"),
        None => "nil".to_owned(),
    };
    format!(
        "&AppArmorProfile{{Type:{},LocalhostProfile:{name},}}",
        profile.type_
    )
}
