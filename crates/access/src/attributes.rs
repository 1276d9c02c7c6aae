//! What a request to the agent is, in the words of authorization: a verb on a subresource of the node.

use http::Method;

/// Paths with their own subresource; the first that fits counts. Where a right to the more general `proxy` does as well,
/// the second field says so: the narrow right is tried first.
const SUBRESOURCES: &[(&str, &str, bool)] = &[
    ("/pods", "pods", true),
    ("/healthz", "healthz", true),
    ("/configz", "configz", true),
    ("/runningpods", "pods", true),
    ("/stats", "stats", false),
    ("/metrics", "metrics", false),
    ("/logs", "log", false),
    ("/checkpoint", "checkpoint", false),
    ("/statusz", "statusz", false),
    ("/flagz", "configz", false),
];
const PROXY: &str = "proxy";

/// What a request needs: any one of the subresources will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub verb: &'static str,
    pub subresources: Vec<&'static str>,
}

pub fn attributes(method: &Method, path: &str) -> Attributes {
    let found = SUBRESOURCES.iter().find(|(place, _, _)| is_at(path, place));
    let subresources = match found {
        Some((_, own, true)) => vec![*own, PROXY],
        Some((_, own, false)) => vec![*own],
        None => vec![PROXY],
    };
    Attributes {
        verb: verb(method),
        subresources,
    }
}

/// A method without a verb of its own needs a right that nobody can be given by name.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

fn is_at(path: &str, place: &str) -> bool {
    let rest = path.strip_prefix(place);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods() {
        let cases = [
            ("GET", "/pods", "get pods,proxy"),
            ("GET", "/pods/", "get pods,proxy"),
            ("GET", "/podsx", "get proxy"),
            ("GET", "/healthz", "get healthz,proxy"),
            ("GET", "/healthz/syncloop", "get healthz,proxy"),
            ("GET", "/configz", "get configz,proxy"),
            ("GET", "/runningpods/", "get pods,proxy"),
            ("GET", "/runningpods", "get pods,proxy"),
            ("GET", "/stats/summary", "get stats"),
            ("POST", "/stats/summary", "create stats"),
            ("GET", "/metrics", "get metrics"),
            ("GET", "/metrics/cadvisor", "get metrics"),
            ("GET", "/logs/", "get log"),
            ("GET", "/logs/syslog", "get log"),
            ("GET", "/statusz", "get statusz"),
            ("GET", "/flagz", "get configz"),
            ("POST", "/checkpoint/ns/pod/c", "create checkpoint"),
            ("POST", "/exec/ns/pod/c", "create proxy"),
            ("GET", "/exec/ns/pod/c", "get proxy"),
            ("GET", "/containerLogs/ns/pod/c", "get proxy"),
            ("PUT", "/debug/flags/v", "update proxy"),
            ("PATCH", "/", "patch proxy"),
            ("DELETE", "/anything", "delete proxy"),
            ("HEAD", "/pods", " pods,proxy"),
            ("GET", "", "get proxy"),
        ];
        for (method, path, expected) in cases {
            let method: Method = method.parse().unwrap();
            let found = attributes(&method, path);
            let found = format!("{} {}", found.verb, found.subresources.join(","));
            assert_eq!(found, expected, "{method} {path}");
        }
    }
}
