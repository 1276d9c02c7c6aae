//! `$(NAME)` in the commands of exec probes, by the container's literal environment alone.

use krablet_pod::api::EnvVar;

/// A variable whose value comes from elsewhere is empty; an unknown one stays as written, and `$$`
/// is a dollar.
pub(crate) fn expand(text: &str, env: &[EnvVar]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|r| r.split_once(')'))
        {
            // The last of one name counts.
            match env.iter().rfind(|e| e.name == name) {
                Some(var) => out.push_str(var.value.as_deref().unwrap_or_default()),
                None => out.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literals_are_known() {
        let var = |name: &str, value: Option<&str>| EnvVar {
            name: name.into(),
            value: value.map(Into::into),
            ..EnvVar::default()
        };
        let env = [var("A", Some("1")), var("A", Some("2")), var("F", None)];
        for (text, expanded) in [
            ("plain", "plain"),
            ("$(A)/$(F)/$(X)", "2//$(X)"),
            ("$$(A) $A $(A", "$(A) $A $(A"),
            ("$", "$"),
        ] {
            assert_eq!(expand(text, &env), expanded);
        }
    }
}
