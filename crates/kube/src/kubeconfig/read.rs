//! From bytes to a [`Kubeconfig`].

use std::path::Path;

use super::fields::Field;
use super::{
    Cluster, Context, ExecConfig, InteractiveMode, Kubeconfig, KubeconfigError, Pem, Secret, User,
};

/// The name of a cluster's extension that is meant for exec plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";
const V1: &str = "client.authentication.k8s.io/v1";
const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";

pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Kubeconfig, KubeconfigError> {
    let syntax = |problem: String| KubeconfigError::Syntax {
        path: path.display().to_string(),
        problem,
    };
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(syntax("the file is empty".to_owned()));
    }
    let document = krablet_yaml::parse(bytes).map_err(|error| syntax(error.to_string()))?;
    let document = Field::document(path, &document.value);
    check_kind(&document)?;
    let mut unheeded = Vec::new();
    let config = Kubeconfig {
        path: path.to_owned(),
        clusters: named(&document, "clusters", cluster, |c| &c.name)?,
        users: named(&document, "users", |f| user(f, &mut unheeded), |u| &u.name)?,
        contexts: named(&document, "contexts", context, |c| &c.name)?,
        current_context: document.text("current-context")?.unwrap_or_default(),
        unheeded,
    };
    Ok(config)
}

/// Both may be left out.
fn check_kind(document: &Field<'_>) -> Result<(), KubeconfigError> {
    for (name, wanted) in [("apiVersion", "v1"), ("kind", "Config")] {
        if let Some(found) = document.get(name)? {
            let text = found.as_text()?;
            if !text.is_empty() && text != wanted {
                return Err(found.bad(format!("want {wanted}, found {text:?}")));
            }
        }
    }
    Ok(())
}

/// The items of a list in which a name must not come twice.
fn named<T>(
    document: &Field<'_>,
    list: &str,
    mut read: impl FnMut(&Field<'_>) -> Result<T, KubeconfigError>,
    name: impl Fn(&T) -> &String,
) -> Result<Vec<T>, KubeconfigError> {
    let mut found: Vec<T> = Vec::new();
    for item in document.items(list)? {
        let value = read(&item)?;
        if found.iter().any(|other| name(other) == name(&value)) {
            let problem = format!("the name {:?} is used before", name(&value));
            return Err(item.bad(problem));
        }
        found.push(value);
    }
    Ok(found)
}

fn cluster(item: &Field<'_>) -> Result<Cluster, KubeconfigError> {
    let name = item.text("name")?.unwrap_or_default();
    let body = item
        .get("cluster")?
        .ok_or_else(|| item.missing("cluster"))?;
    let mut exec_extension = None;
    for extension in body.items("extensions")? {
        if extension.text("name")?.as_deref() == Some(EXEC_EXTENSION) {
            exec_extension = extension.get("extension")?.map(|value| value.raw().clone());
        }
    }
    Ok(Cluster {
        name,
        server: body.word("server")?.unwrap_or_default(),
        certificate_authority: pem(&body, "certificate-authority")?,
        tls_server_name: body.word("tls-server-name")?,
        insecure_skip_tls_verify: body.flag("insecure-skip-tls-verify")?,
        proxy_url: body.word("proxy-url")?.map(Secret::new),
        exec_extension,
    })
}

fn context(item: &Field<'_>) -> Result<Context, KubeconfigError> {
    let body = item
        .get("context")?
        .ok_or_else(|| item.missing("context"))?;
    Ok(Context {
        name: item.text("name")?.unwrap_or_default(),
        cluster: body.word("cluster")?.unwrap_or_default(),
        user: body.word("user")?.unwrap_or_default(),
    })
}

fn user(item: &Field<'_>, unheeded: &mut Vec<(String, String)>) -> Result<User, KubeconfigError> {
    let name = item.text("name")?.unwrap_or_default();
    // A user without anything is anonymous.
    let Some(body) = item.get("user")? else {
        let user = User {
            name,
            ..User::default()
        };
        return Ok(user);
    };
    for field in [
        "auth-provider",
        "as",
        "as-uid",
        "as-groups",
        "as-user-extra",
    ] {
        if let Some(found) = body.get(field)? {
            unheeded.push((name.clone(), found.name().to_owned()));
        }
    }
    let exec = match body.get("exec")? {
        Some(field) => Some(exec(&field)?),
        None => None,
    };
    Ok(User {
        name,
        client_certificate: pem(&body, "client-certificate")?,
        client_key: pem(&body, "client-key")?,
        token: body.word("token")?.map(Secret::new),
        token_file: body.path("tokenFile")?,
        username: body.word("username")?,
        password: body.word("password")?.map(Secret::new),
        exec,
    })
}

/// `NAME-data` goes before `NAME`.
fn pem(body: &Field<'_>, name: &str) -> Result<Option<Pem>, KubeconfigError> {
    if let Some(data) = body.base64(&format!("{name}-data"))? {
        return Ok(Some(Pem::Data(data)));
    }
    Ok(body.path(name)?.map(Pem::File))
}

fn exec(field: &Field<'_>) -> Result<ExecConfig, KubeconfigError> {
    let command = field.word("command")?;
    let command = command.ok_or_else(|| field.missing("command"))?;
    // A bare name is looked for in PATH, a relative path begins at the kubeconfig.
    let command = match command.contains('/') {
        true => field.beside_file(&command).display().to_string(),
        false => command,
    };
    let version = field.get("apiVersion")?;
    let version = version.ok_or_else(|| field.missing("apiVersion"))?;
    let api_version = version.as_text()?;
    if api_version != V1 && api_version != V1BETA1 {
        return Err(version.bad(format!("want {V1} or {V1BETA1}")));
    }
    let mut env = Vec::new();
    for item in field.items("env")? {
        let name = item.word("name")?.ok_or_else(|| item.missing("name"))?;
        let value = item.text("value")?.unwrap_or_default();
        env.push((name, Secret::new(value)));
    }
    let args = field.items("args")?;
    Ok(ExecConfig {
        command,
        args: args.iter().map(Field::as_text).collect::<Result<_, _>>()?,
        env,
        interactive_mode: interactive_mode(field, &api_version)?,
        api_version,
        install_hint: field.word("installHint")?,
        provide_cluster_info: field.flag("provideClusterInfo")?,
    })
}

fn interactive_mode(
    field: &Field<'_>,
    api_version: &str,
) -> Result<InteractiveMode, KubeconfigError> {
    let Some(mode) = field.get("interactiveMode")? else {
        // The newer version wants it said.
        return match api_version == V1 {
            true => Err(field.missing("interactiveMode")),
            false => Ok(InteractiveMode::IfAvailable),
        };
    };
    match mode.as_text()?.as_str() {
        "Never" => Ok(InteractiveMode::Never),
        "IfAvailable" => Ok(InteractiveMode::IfAvailable),
        "Always" => Ok(InteractiveMode::Always),
        _ => Err(mode.bad("want Never, IfAvailable or Always")),
    }
}
