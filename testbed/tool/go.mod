module krablet.local/testbed/tool

go 1.24
