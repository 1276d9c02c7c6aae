// Command tool is the one program of the test image: whatever a container has to do in a test, it
// does by a sub-command. It uses the standard library alone.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: tool COMMAND [ARGUMENT...]

  exit CODE [AFTER]              end with CODE, after a while if AFTER (such as 2s) is given
  sleep DURATION                 end with 0 after DURATION, or at once with 143 on SIGTERM
  hold                           run until SIGTERM, then end with 0
  ignore-term                    run on through SIGTERM and SIGINT
  slow-term DURATION             on SIGTERM, take DURATION to end with 0
  term-message TEXT [CODE]       write TEXT to $TERMINATION_LOG or /dev/termination-log, end with CODE
  eat-memory MIB [DURATION]      touch that much memory, then hold it (for DURATION)
  env [NAME...]                  print the environment, or the named variables
  cat FILE...                    print files
  write FILE TEXT                write a file, then end
  log LINE [COUNT [EVERY]]       print LINE COUNT times (0: for ever), pausing EVERY between
  http [-port N] [-delay D] [-status N] [-redirect URL] [-ready-after D] [-file PATH]
                                 serve HTTP; see the source of http.go for the paths
  tcp [-port N] [-delay D]       accept TCP connections
  udp [-port N]                  send every UDP packet back
  grpc [-port N] [-service NAME] [-status SERVING|NOT_SERVING|UNKNOWN] [-file PATH]
                                 serve grpc.health.v1.Health/Check
  stop-file FILE                 run until FILE exists, then end with the code written in it`

func main() {
	if len(os.Args) < 2 {
		fail("%s", usage)
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "exit":
		pause(argument(args, 1, "0s"))
		os.Exit(number(argument(args, 0, "0")))
	case "sleep":
		sleep(duration(argument(args, 0, "0s")))
	case "hold":
		hold(0)
	case "ignore-term":
		for signal := range terminated() {
			fmt.Println("ignoring", signal)
		}
	case "slow-term":
		hold(duration(argument(args, 0, "5s")))
	case "term-message":
		path := os.Getenv("TERMINATION_LOG")
		if path == "" {
			path = "/dev/termination-log"
		}
		check(os.WriteFile(path, []byte(argument(args, 0, "")), 0o644))
		os.Exit(number(argument(args, 1, "0")))
	case "eat-memory":
		eatMemory(number(argument(args, 0, "16")))
		sleep(duration(argument(args, 1, "1000000h")))
	case "env":
		printEnvironment(args)
	case "cat":
		for _, path := range args {
			text, err := os.ReadFile(path)
			check(err)
			os.Stdout.Write(text)
		}
	case "write":
		check(os.WriteFile(argument(args, 0, ""), []byte(argument(args, 1, "")), 0o644))
	case "log":
		log(argument(args, 0, "hello"), number(argument(args, 1, "1")), duration(argument(args, 2, "0s")))
	case "http":
		serveHTTP(args)
	case "tcp":
		serveTCP(args)
	case "udp":
		serveUDP(args)
	case "grpc":
		serveGRPC(args)
	case "stop-file":
		stopFile(argument(args, 0, "/stop"))
	default:
		fail("unknown command %q\n%s", os.Args[1], usage)
	}
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(2)
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func argument(args []string, index int, otherwise string) string {
	if index < len(args) {
		return args[index]
	}
	return otherwise
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func duration(text string) time.Duration {
	value, err := time.ParseDuration(text)
	check(err)
	return value
}

func pause(text string) { time.Sleep(duration(text)) }

// terminated is told of SIGTERM and SIGINT. A process that is PID 1 of its namespace gets no
// default action for them, so every waiting command has to ask.
func terminated() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	return signals
}

func sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-terminated():
		os.Exit(143)
	}
}

func hold(grace time.Duration) {
	signals := terminated()
	fmt.Println("holding")
	fmt.Println("got", <-signals)
	time.Sleep(grace)
}

func stopFile(path string) {
	signals := terminated()
	for {
		text, err := os.ReadFile(path)
		if err == nil {
			os.Exit(number(strings.TrimSpace("0" + string(text))))
		}
		select {
		case <-signals:
			os.Exit(143)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func eatMemory(mib int) {
	held := make([][]byte, 0, mib)
	for range mib {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		held = append(held, block)
	}
	eaten = held
	fmt.Printf("holding %d MiB\n", mib)
}

// eaten keeps the blocks reachable.
var eaten [][]byte

func printEnvironment(names []string) {
	if len(names) == 0 {
		all := os.Environ()
		sort.Strings(all)
		fmt.Println(strings.Join(all, "\n"))
		return
	}
	for _, name := range names {
		fmt.Printf("%s=%s\n", name, os.Getenv(name))
	}
}

func log(line string, count int, every time.Duration) {
	for i := 0; count == 0 || i < count; i++ {
		fmt.Println(line)
		time.Sleep(every)
	}
}
