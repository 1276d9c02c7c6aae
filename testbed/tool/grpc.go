package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"io"
	"net/http"
	"os"
	"strings"
)

// servingStatus holds the numbers of grpc.health.v1's ServingStatus.
var servingStatus = map[string]byte{"UNKNOWN": 0, "SERVING": 1, "NOT_SERVING": 2}

// serveGRPC speaks just enough gRPC for one unary call: HTTP/2 without TLS, a length-prefixed
// message of one enum field, and the status in the trailer. A service other than -service is
// answered with NOT_FOUND, as the health protocol asks. -file names a file whose text, if it
// exists, replaces -status.
func serveGRPC(args []string) {
	flags := flag.NewFlagSet("grpc", flag.ExitOnError)
	port := flags.Int("port", 8080, "")
	service := flags.String("service", "", "")
	status := flags.String("status", "SERVING", "")
	file := flags.String("file", "", "")
	check(flags.Parse(args))

	mux := http.NewServeMux()
	mux.HandleFunc("/grpc.health.v1.Health/Check", func(w http.ResponseWriter, r *http.Request) {
		request, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		if err != nil || serviceName(request) != *service {
			w.Header().Set("Grpc-Status", "5")
			w.Header().Set("Grpc-Message", "unknown service")
			return
		}
		now := *status
		if text, err := os.ReadFile(*file); *file != "" && err == nil {
			now = strings.TrimSpace(string(text))
		}
		message := []byte{0x08, servingStatus[now]}
		frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
		w.Write(append(frame, message...))
		w.Header().Set("Grpc-Status", "0")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "12")
	})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	listener := listen(*port)
	go func() { check(server.Serve(listener)) }()
	<-terminated()
}

// serviceName reads field 1 of a framed HealthCheckRequest; the message has no other field.
func serviceName(frame []byte) string {
	if len(frame) < 5+2 || frame[5] != 0x0a {
		return ""
	}
	length, used := binary.Uvarint(frame[6:])
	rest := frame[6:]
	if used <= 0 || uint64(len(rest)) < uint64(used)+length {
		return ""
	}
	return string(bytes.Clone(rest[used : uint64(used)+length]))
}
