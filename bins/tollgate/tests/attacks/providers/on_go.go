// A provider on Go's net/http and encoding/json: a key is equal to a field when case folding makes it so.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// The answer of a model to which no maximum is stated.
const longest = 4000

type options struct {
	IncludeUsage bool `json:"include_usage"`
}

type chat struct {
	Model               string            `json:"model"`
	MaxTokens           int               `json:"max_tokens"`
	MaxCompletionTokens int               `json:"max_completion_tokens"`
	Stream              bool              `json:"stream"`
	StreamOptions       options           `json:"stream_options"`
	N                   int               `json:"n"`
	Tools               []json.RawMessage `json:"tools"`
	ServiceTier         string            `json:"service_tier"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

type call struct {
	Model        string      `json:"model"`
	MaxTokens    int         `json:"max_tokens"`
	Stream       bool        `json:"stream"`
	IncludeUsage bool        `json:"include_usage"`
	N            int         `json:"n"`
	Tools        int         `json:"tools"`
	ServiceTier  string      `json:"service_tier"`
	Usage        usage       `json:"usage"`
	Headers      [][2]string `json:"headers"`
	BodyBytes    int         `json:"body_bytes"`
}

var (
	lock sync.Mutex
	seen = map[string][]call{}
)

func read(request *http.Request) call {
	text, _ := io.ReadAll(request.Body)
	var body chat
	// What does not fit its field is left out, and the rest is read.
	_ = json.Unmarshal(text, &body)
	read := call{
		Model: body.Model, MaxTokens: longest, Stream: body.Stream,
		IncludeUsage: body.StreamOptions.IncludeUsage, N: max(body.N, 1), Tools: len(body.Tools),
		ServiceTier: body.ServiceTier, Headers: [][2]string{}, BodyBytes: len(text),
	}
	if body.MaxTokens > 0 {
		read.MaxTokens = body.MaxTokens
	}
	if body.MaxCompletionTokens > 0 {
		read.MaxTokens = body.MaxCompletionTokens
	}
	prompt, completion := max(1, len(text)/4), read.N*read.MaxTokens
	read.Usage = usage{prompt, completion, prompt + completion}
	for name, values := range request.Header {
		for _, value := range values {
			read.Headers = append(read.Headers, [2]string{strings.ToLower(name), value})
		}
	}
	lock.Lock()
	defer lock.Unlock()
	attack := request.Header.Get("X-Attack")
	seen[attack] = append(seen[attack], read)
	return read
}

func answer(response http.ResponseWriter, request *http.Request) {
	call := read(request)
	chat := map[string]any{"id": "chatcmpl-1", "created": 1, "model": call.Model}
	if !call.Stream {
		chat["choices"] = []any{map[string]any{
			"index": 0, "finish_reason": "stop",
			"message": map[string]string{"role": "assistant", "content": "Yes."},
		}}
		chat["usage"] = call.Usage
		response.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(response).Encode(chat)
		return
	}
	response.Header().Set("Content-Type", "text/event-stream")
	event := func(choices []any, usage any) {
		chat["choices"] = choices
		delete(chat, "usage")
		if usage != nil {
			chat["usage"] = usage
		}
		line, _ := json.Marshal(chat)
		fmt.Fprintf(response, "data: %s\n\n", line)
	}
	event([]any{map[string]any{"index": 0, "delta": map[string]string{"content": "Yes."}}}, nil)
	event([]any{map[string]any{"index": 0, "delta": struct{}{}, "finish_reason": "stop"}}, nil)
	if call.IncludeUsage {
		event([]any{}, call.Usage)
	}
	fmt.Fprint(response, "data: [DONE]\n\n")
}

func show(response http.ResponseWriter, request *http.Request) {
	lock.Lock()
	defer lock.Unlock()
	calls := seen[strings.TrimPrefix(request.URL.Path, "/seen/")]
	if calls == nil {
		calls = []call{}
	}
	response.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(response).Encode(calls)
}

func main() {
	http.HandleFunc("/v1/chat/completions", answer)
	http.HandleFunc("/seen/", show)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	panic(http.Serve(listener, nil))
}
