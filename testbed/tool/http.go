package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// serveHTTP answers on every path with -status, after -delay. Some paths are special:
//
//	/healthz        200, or 503 while unhealthy; unhealthy until -ready-after is over, while the file
//	                given by -file says so (its text is the status code), and after /break
//	/break, /mend   switch /healthz
//	/redirect       to the URL given by -redirect, else to /healthz
//	/status/N       answers with code N
//	/delay/D        answers after D
//	/headers        what the client sent
//	/hits           how often /healthz was asked
//	/exit/N         ends the program with code N
func serveHTTP(args []string) {
	flags := flag.NewFlagSet("http", flag.ExitOnError)
	port := flags.Int("port", 8080, "")
	delay := flags.Duration("delay", 0, "")
	status := flags.Int("status", http.StatusOK, "")
	redirect := flags.String("redirect", "/healthz", "")
	readyAfter := flags.Duration("ready-after", 0, "")
	file := flags.String("file", "", "")
	check(flags.Parse(args))

	start := time.Now()
	var broken atomic.Bool
	var hits atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(*status)
		host, _ := os.Hostname()
		fmt.Fprintf(w, "%s %s from %s\n", r.Method, r.URL.Path, host)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		code := http.StatusOK
		if broken.Load() || time.Since(start) < *readyAfter {
			code = http.StatusServiceUnavailable
		} else if text, err := os.ReadFile(*file); *file != "" && err == nil {
			code = number(strings.TrimSpace(string(text)))
		}
		w.WriteHeader(code)
		fmt.Fprintln(w, http.StatusText(code))
	})
	mux.HandleFunc("/break", func(w http.ResponseWriter, r *http.Request) { broken.Store(true) })
	mux.HandleFunc("/mend", func(w http.ResponseWriter, r *http.Request) { broken.Store(false) })
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, *redirect, http.StatusFound)
	})
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		if code, err := strconv.Atoi(r.PathValue("code")); err == nil {
			w.WriteHeader(code)
		}
	})
	mux.HandleFunc("/delay/{time}", func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.PathValue("time")); err == nil {
			time.Sleep(d)
		}
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Host: %s\n", r.Host)
		r.Header.Write(w)
	})
	mux.HandleFunc("/hits", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, hits.Load()) })
	mux.HandleFunc("/exit/{code}", func(w http.ResponseWriter, r *http.Request) {
		if code, err := strconv.Atoi(r.PathValue("code")); err == nil {
			os.Exit(code)
		}
	})
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(*delay)
		mux.ServeHTTP(w, r)
	})
	listener := listen(*port)
	go func() { check(http.Serve(listener, slow)) }()
	<-terminated()
}

func serveTCP(args []string) {
	flags := flag.NewFlagSet("tcp", flag.ExitOnError)
	port := flags.Int("port", 8080, "")
	delay := flags.Duration("delay", 0, "")
	check(flags.Parse(args))
	time.Sleep(*delay)
	listener := listen(*port)
	go func() {
		for {
			connection, err := listener.Accept()
			check(err)
			go func() {
				io.Copy(connection, connection)
				connection.Close()
			}()
		}
	}()
	<-terminated()
}

// serveUDP sends every packet back to where it came from.
func serveUDP(args []string) {
	flags := flag.NewFlagSet("udp", flag.ExitOnError)
	port := flags.Int("port", 8080, "")
	check(flags.Parse(args))
	socket, err := net.ListenUDP("udp", &net.UDPAddr{Port: *port})
	check(err)
	go func() {
		packet := make([]byte, 65536)
		for {
			length, from, err := socket.ReadFromUDP(packet)
			check(err)
			// One that cannot be answered is not worth the end of it.
			_, _ = socket.WriteToUDP(packet[:length], from)
		}
	}()
	<-terminated()
}

func listen(port int) net.Listener {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	check(err)
	fmt.Println("listening on", listener.Addr())
	return listener
}
