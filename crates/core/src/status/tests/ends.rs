//! Ends told between a kill and the start that follows.

use super::*;

#[test]
fn ends_of_killed_containers_are_told_before_others_take_their_place() {
    let cases = r"
        c:a | S0 a:run | S0 a:exit137 | Running NICR a=end137(Error)
        c:a | S0 a:run a:exit1 | S0 a:exit3 a:exit1 | Running NICR a=end3(Error)x1<1(Error)
        onfailure c:a | S0 a:run | S0 a:exit2 | Running NICR a=end2(Error)
        never i:s* c:a | S0 s:run a:run | S0 s:exit2 a:run | Running NICR s=end2(Error) a=run+
        c:a c:b | S0 a:run b:run | S0 a:exit1 b:run | Running NICR a=end1(Error) b=run+
        # What stood already, and what runs, is no news.
        c:a | S0 a:exit1 | S0 a:exit1 | none
        c:a | S0 a:run | S0 a:run | none
        # The end of one that never restarts would be the pod's.
        never c:a | S0 a:run | S0 a:exit1 | none
        onfailure c:a | S0 a:run | S0 a:exit0 | none
        # Unless it makes way for another: then the container waits for that.
        onfailure c:a | S0 a:run | S0 a:exit0/way | Running NICR a=wait()<0(Completed)
        onfailure c:a | S0 a:run a:exit1 | S0 a:exit0/way a:exit1 | Running NICR a=wait()x1<0(Completed)
        never c:a c:b | S0 a:run b:run | S0 a:exit1/way b:run | Running NICR a=wait()<1(Error) b=run+
        never c:a | S0 a:exit1/way | S0 a:exit1/way | none
    ";
    let rows = cases.lines().map(str::trim);
    let rows = rows.filter(|l| !l.is_empty() && !l.starts_with('#'));
    check_all(rows.map(|row| {
        let fields: Vec<&str> = row.split(" | ").collect();
        let pod = pod(fields[0]);
        let spec = pod.spec.clone().unwrap();
        let standing = after(&pod, fields[1]);
        let now = seen(&pod, fields[2]).observed;
        let gates = RestartGates::default();
        let told = with_ends(&standing, &spec, &now, &node().runtime_name, gates);
        let told = told.map_or("none".to_owned(), |status| render(&status));
        (row.to_owned(), fields[3].to_owned(), told)
    }));
}
