// Package main stands in for the `client` of the image gateway-api/echo-advanced: the conformance suite of the Gateway
// API runs it in a pod, and reads lines of `Field=value` from its output, a blank line between two responses
// (conformance/utils/echo/parse.go). What answers is echo-basic, of the suite's own module.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	pb "sigs.k8s.io/gateway-api/conformance/echo-basic/grpcechoserver"
)

// timeout of one request, which the suite repeats until its own time is over.
const timeout = 5 * time.Second

type request struct {
	target  *url.URL
	method  string
	headers http.Header
	count   int
}

// echoed is what echo-basic says of a request that it got.
type echoed struct {
	Host    string      `json:"host"`
	Headers http.Header `json:"headers"`
	Pod     string      `json:"pod"`
}

func main() {
	asked, err := parse(os.Args[1:])
	if err != nil {
		fail(err)
	}
	send := overHTTP
	if asked.target.Scheme == "grpc" {
		send = overGRPC
	}
	for range asked.count {
		output, err := send(asked)
		if err != nil {
			fail(err)
		}
		fmt.Println(output)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// parse takes URL, --method=M, --count=N and -H Name:Value, in any order.
func parse(words []string) (*request, error) {
	asked := &request{method: http.MethodGet, headers: http.Header{}, count: 1}
	for i := 0; i < len(words); i++ {
		word := words[i]
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch {
		case name == "--method":
			asked.method = value
		case name == "--count":
			asked.count, err = strconv.Atoi(value)
		case word == "-H" && i+1 < len(words):
			i++
			header, value, _ := strings.Cut(words[i], ":")
			asked.headers.Add(header, value)
		case strings.Contains(word, "://"):
			asked.target, err = url.Parse(word)
		default:
			err = fmt.Errorf("unknown argument %q", word)
		}
		if err != nil {
			return nil, err
		}
	}
	if asked.target == nil {
		return nil, fmt.Errorf("no URL in %q", words)
	}
	return asked, nil
}

// overHTTP makes a connection for each request, so that what steers connections is tested too; follows no redirect.
func overHTTP(asked *request) (string, error) {
	client := &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	out, err := http.NewRequest(asked.method, asked.target.String(), nil)
	if err != nil {
		return "", err
	}
	out.Header = asked.headers.Clone()
	if host := asked.headers.Get("Host"); host != "" {
		out.Host = host
	}
	response, err := client.Do(out)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	var server echoed
	_ = json.Unmarshal(body, &server) // an answer of the proxy's own has another body, or none
	lines := fmt.Sprintf("StatusCode=%d\nProto=%s\nHost=%s\nHostname=%s\n", response.StatusCode, response.Proto, server.Host, server.Pod)
	return lines + fields("RequestHeader", server.Headers) + fields("ResponseHeader", response.Header), nil
}

func overGRPC(asked *request) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	for name, values := range asked.headers {
		for _, value := range values {
			if name == "Host" {
				options = append(options, grpc.WithAuthority(value))
			} else {
				ctx = metadata.AppendToOutgoingContext(ctx, strings.ToLower(name), value)
			}
		}
	}
	connection, err := grpc.NewClient("passthrough:///"+asked.target.Host, options...)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	var answered metadata.MD
	response, err := pb.NewGrpcEchoClient(connection).Echo(ctx, &pb.EchoRequest{}, grpc.Header(&answered))
	if err != nil {
		return "", err
	}
	assertions := response.GetAssertions()
	headers := http.Header{}
	for _, each := range assertions.GetHeaders() {
		headers.Add(each.GetKey(), each.GetValue())
	}
	// The suite takes 200 for gRPC's OK.
	lines := fmt.Sprintf("StatusCode=200\nProto=GRPC\nHost=%s\nHostname=%s\n", assertions.GetAuthority(), assertions.GetContext().GetPod())
	return lines + fields("RequestHeader", headers) + fields("ResponseHeader", http.Header(answered)), nil
}

func fields(name string, headers http.Header) string {
	var lines strings.Builder
	for key, values := range headers {
		for _, value := range values {
			fmt.Fprintf(&lines, "%s=%s:%s\n", name, key, value)
		}
	}
	return lines.String()
}
