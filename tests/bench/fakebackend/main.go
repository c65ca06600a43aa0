// fakebackend: a very cheap stand-in for an OpenAI-compatible LLM server.
//
// HTTP/1.1 is handled by hand (keep-alive, Content-Length and chunked request
// bodies, Expect: 100-continue) so that the backend costs a few microseconds a
// request and is never what a gateway benchmark measures.
//
// Behaviour is chosen by the flags, and per request by the model name:
//
//	fake-d20-n200-i5000-p12-k50-e500-x1
//	  d  delay before the first byte, ms
//	  n  content chunks (= completion tokens)
//	  i  interval between chunks, microseconds (0: as fast as the socket takes them)
//	  p  prompt tokens that usage reports
//	  b  chunks per socket write (default 1)
//	  k  cut the connection after k content chunks (a backend that dies mid-stream)
//	  e  answer with this HTTP status instead
//	  u  1: always send the usage chunk, 2: never send it
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type params struct{ d, n, i, p, b, k, e, u, f int }

var (
	def      params
	key      string
	name     string
	models   []string
	owner    string
	started  = time.Now()
	stats    counters
	perModel sync.Map // model -> *int64
	lastMu   sync.Mutex
	lastHdr  map[string]string
	aborts   []abortRec
	pcache   sync.Map
)

type counters struct {
	Conns, OpenConns, Requests, NonStream, Streams, StreamsDone, StreamsAborted, Cut                 int64
	WaitAborted, Chunks, Unauthorized, WithUsage, Running, PromptTokens, CompletionTokens, Continued int64
}

type abortRec struct {
	Model  string `json:"model"`
	Chunks int    `json:"chunks"`
	Of     int    `json:"of"`
	AtMs   int64  `json:"after_ms"`
}

func parseModel(m string) params {
	if v, ok := pcache.Load(m); ok {
		return v.(params)
	}
	p := def
	for _, t := range strings.Split(m, "-")[1:] {
		if len(t) < 2 {
			continue
		}
		v, err := strconv.Atoi(t[1:])
		if err != nil {
			continue
		}
		switch t[0] {
		case 'd':
			p.d = v
		case 'n':
			p.n = v
		case 'i':
			p.i = v
		case 'p':
			p.p = v
		case 'b':
			p.b = v
		case 'k':
			p.k = v
		case 'e':
			p.e = v
		case 'u':
			p.u = v
		case 'f':
			p.f = v
		}
	}
	if p.b < 1 {
		p.b = 1
	}
	pcache.Store(m, p)
	return p
}

// field returns the raw bytes that follow `"name":` (whitespace skipped), or nil.
func field(body []byte, quoted string) []byte {
	for off := 0; ; {
		i := bytes.Index(body[off:], []byte(quoted))
		if i < 0 {
			return nil
		}
		r := body[off+i+len(quoted):]
		r = bytes.TrimLeft(r, " \t\r\n")
		if len(r) > 0 && r[0] == ':' {
			return bytes.TrimLeft(r[1:], " \t\r\n")
		}
		off += i + len(quoted)
	}
}

func isTrue(v []byte) bool { return bytes.HasPrefix(v, []byte("true")) }

func strVal(v []byte) string {
	if len(v) < 2 || v[0] != '"' {
		return ""
	}
	e := bytes.IndexByte(v[1:], '"')
	if e < 0 {
		return ""
	}
	return string(v[1 : 1+e])
}

type req struct {
	method, path string
	hdr          map[string]string
	body         []byte
	close        bool
}

func readReq(br *bufio.Reader, c net.Conn) (*req, error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	parts := strings.SplitN(strings.TrimRight(string(line), "\r\n"), " ", 3)
	if len(parts) < 3 {
		return nil, errors.New("bad request line")
	}
	r := &req{method: parts[0], path: parts[1], hdr: make(map[string]string, 12)}
	if parts[2] == "HTTP/1.0" {
		r.close = true
	}
	for {
		l, err := br.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		l = bytes.TrimRight(l, "\r\n")
		if len(l) == 0 {
			break
		}
		i := bytes.IndexByte(l, ':')
		if i > 0 {
			r.hdr[strings.ToLower(string(l[:i]))] = string(bytes.TrimSpace(l[i+1:]))
		}
	}
	if strings.EqualFold(r.hdr["connection"], "close") {
		r.close = true
	}
	if strings.EqualFold(r.hdr["expect"], "100-continue") {
		c.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	}
	if strings.Contains(strings.ToLower(r.hdr["transfer-encoding"]), "chunked") {
		for {
			l, err := br.ReadSlice('\n')
			if err != nil {
				return nil, err
			}
			n, err := strconv.ParseInt(strings.TrimSpace(strings.SplitN(string(l), ";", 2)[0]), 16, 64)
			if err != nil {
				return nil, err
			}
			if n > 0 {
				b := make([]byte, n)
				if _, err := io.ReadFull(br, b); err != nil {
					return nil, err
				}
				r.body = append(r.body, b...)
			}
			if _, err := br.ReadSlice('\n'); err != nil {
				return nil, err
			}
			if n == 0 {
				break
			}
		}
	} else if cl := r.hdr["content-length"]; cl != "" {
		n, err := strconv.Atoi(cl)
		if err != nil || n < 0 || n > 64<<20 {
			return nil, errors.New("bad length")
		}
		r.body = make([]byte, n)
		if _, err := io.ReadFull(br, r.body); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func send(c net.Conn, status int, ctype string, body []byte, extra string) error {
	h := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nX-Backend: %s\r\n%s\r\n",
		status, statusText(status), ctype, len(body), name, extra)
	_, err := c.Write(append([]byte(h), body...))
	return err
}

func statusText(s int) string {
	switch s {
	case 200:
		return "OK"
	case 401:
		return "Unauthorized"
	case 404:
		return "Not Found"
	case 429:
		return "Too Many Requests"
	case 503:
		return "Service Unavailable"
	}
	return "Status"
}

var words = strings.Repeat(" tok", 100000)

func serve(c net.Conn) {
	atomic.AddInt64(&stats.Conns, 1)
	atomic.AddInt64(&stats.OpenConns, 1)
	defer atomic.AddInt64(&stats.OpenConns, -1)
	defer c.Close()
	br := bufio.NewReaderSize(c, 32<<10)
	for {
		r, err := readReq(br, c)
		if err != nil {
			return
		}
		if !handle(c, br, r) || r.close {
			return
		}
	}
}

func handle(c net.Conn, br *bufio.Reader, r *req) bool {
	path := r.path
	if q := strings.IndexByte(path, '?'); q >= 0 {
		path = path[:q]
	}
	switch path {
	case "/health", "/ping", "/version", "/healthz":
		return send(c, 200, "application/json", []byte(`{"status":"ok"}`), "") == nil
	case "/metrics":
		return send(c, 200, "text/plain; version=0.0.4", metrics(), "") == nil
	case "/_stats":
		return send(c, 200, "application/json", statsJSON(), "") == nil
	case "/_reset":
		oc, run := atomic.LoadInt64(&stats.OpenConns), atomic.LoadInt64(&stats.Running)
		lastMu.Lock()
		stats = counters{OpenConns: oc, Running: run}
		aborts = nil
		lastMu.Unlock()
		return send(c, 200, "application/json", []byte(`{}`), "") == nil
	}
	if key != "" && r.hdr["authorization"] != "Bearer "+key {
		atomic.AddInt64(&stats.Unauthorized, 1)
		return send(c, 401, "application/json", []byte(`{"error":{"message":"Unauthorized","type":"invalid_request_error","code":401}}`), "") == nil
	}
	switch path {
	case "/v1/models", "/models":
		var b bytes.Buffer
		b.WriteString(`{"object":"list","data":[`)
		for i, m := range models {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"id":%q,"object":"model","created":%d,"owned_by":%q,"max_model_len":32768}`, m, started.Unix(), owner)
		}
		b.WriteString(`]}`)
		return send(c, 200, "application/json", b.Bytes(), "") == nil
	case "/get_model_info", "/model_info", "/get_server_info", "/server_info":
		return send(c, 200, "application/json", []byte(`{"model_path":"`+models[0]+`","served_model_name":"`+models[0]+`","tokenizer_path":"","is_generation":true}`), "") == nil
	case "/v1/chat/completions", "/chat/completions":
		return complete(c, br, r, true)
	case "/v1/completions", "/completions":
		return complete(c, br, r, false)
	}
	return send(c, 404, "application/json", []byte(`{"error":{"message":"not found"}}`), "") == nil
}

// continued tells how many chunks of an earlier, cut answer (` t0 t1 ...`) the request carries: as a trailing
// assistant message, or after the prompt of a completion. A real engine would go on from there; so does this one.
func continued(body []byte) int {
	i := bytes.Index(body, []byte(" t0"))
	if i < 0 {
		return 0
	}
	k := 0
	for {
		w := " t" + strconv.Itoa(k)
		if !bytes.HasPrefix(body[i:], []byte(w)) {
			return k
		}
		i += len(w)
		k++
	}
}

func complete(c net.Conn, br *bufio.Reader, r *req, chat bool) bool {
	t0 := time.Now()
	model := strVal(field(r.body, `"model"`))
	p := parseModel(model)
	stream := isTrue(field(r.body, `"stream"`))
	usage := isTrue(field(r.body, `"include_usage"`))
	running := isTrue(field(r.body, `"continuous_usage_stats"`))
	if p.u == 1 {
		usage = true
	} else if p.u == 2 {
		usage = false
	}
	n := atomic.AddInt64(&stats.Requests, 1)
	if usage && stream {
		atomic.AddInt64(&stats.WithUsage, 1)
	}
	if v, ok := perModel.Load(model); ok {
		atomic.AddInt64(v.(*int64), 1)
	} else {
		v, _ := perModel.LoadOrStore(model, new(int64))
		atomic.AddInt64(v.(*int64), 1)
	}
	if n%64 == 1 {
		lastMu.Lock()
		lastHdr = r.hdr
		lastMu.Unlock()
	}
	atomic.AddInt64(&stats.Running, 1)
	defer atomic.AddInt64(&stats.Running, -1)
	if p.d > 0 {
		// wait, but notice a caller that hangs up meanwhile
		c.SetReadDeadline(t0.Add(time.Duration(p.d) * time.Millisecond))
		_, err := br.Peek(1)
		c.SetReadDeadline(time.Time{})
		var ne net.Error
		if err == nil {
			time.Sleep(time.Until(t0.Add(time.Duration(p.d) * time.Millisecond)))
		} else if !(errors.As(err, &ne) && ne.Timeout()) {
			atomic.AddInt64(&stats.WaitAborted, 1)
			return false
		}
	}
	if p.e > 0 {
		return send(c, p.e, "application/json", []byte(`{"error":{"message":"made to fail","type":"server_error","code":"`+strconv.Itoa(p.e)+`"}}`), "") == nil
	}
	from := continued(r.body)
	if from > 0 {
		atomic.AddInt64(&stats.Continued, 1)
		if p.f > 0 {
			return send(c, 400, "application/json", []byte(`{"error":{"message":"the last message must not be from the assistant","type":"invalid_request_error","code":null}}`), "") == nil
		}
	}
	id := "chatcmpl-" + name + "-" + strconv.FormatInt(n, 36) + strconv.FormatInt(t0.UnixNano(), 36)
	created := strconv.FormatInt(t0.Unix(), 10)
	if from > p.n {
		from = p.n
	}
	in, out := p.p+from, p.n-from
	us := `{"prompt_tokens":` + strconv.Itoa(in) + `,"completion_tokens":` + strconv.Itoa(out) + `,"total_tokens":` + strconv.Itoa(in+out) + `}`
	if !stream {
		atomic.AddInt64(&stats.NonStream, 1)
		txt := words[:4*out]
		var b []byte
		if chat {
			b = []byte(`{"id":"` + id + `","object":"chat.completion","created":` + created + `,"model":"` + model + `","choices":[{"index":0,"message":{"role":"assistant","content":"` + txt + `"},"logprobs":null,"finish_reason":"stop"}],"usage":` + us + `}`)
		} else {
			b = []byte(`{"id":"` + id + `","object":"text_completion","created":` + created + `,"model":"` + model + `","choices":[{"index":0,"text":"` + txt + `","logprobs":null,"finish_reason":"stop"}],"usage":` + us + `}`)
		}
		atomic.AddInt64(&stats.PromptTokens, int64(in))
		atomic.AddInt64(&stats.CompletionTokens, int64(out))
		return send(c, 200, "application/json", b, "") == nil
	}
	atomic.AddInt64(&stats.Streams, 1)
	obj, pre, post := "chat.completion.chunk", `{"index":0,"delta":{"content":" t`, `"},"logprobs":null,"finish_reason":null}]}`
	if !chat {
		obj, pre, post = "text_completion", `{"index":0,"text":" t`, `","logprobs":null,"finish_reason":null}]}`
	}
	head := `data: {"id":"` + id + `","object":"` + obj + `","created":` + created + `,"model":"` + model + `","choices":[`
	buf := make([]byte, 0, 1024+400*p.b)
	buf = append(buf, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\nX-Backend: "+name+"\r\n\r\n"...)
	if chat {
		buf = chunk(buf, head, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`, "", "")
	}
	abort := func(k int) bool {
		atomic.AddInt64(&stats.StreamsAborted, 1)
		lastMu.Lock()
		if len(aborts) < 1000 {
			aborts = append(aborts, abortRec{model, k, p.n, time.Since(t0).Milliseconds()})
		}
		lastMu.Unlock()
		return false
	}
	s0 := time.Now()
	sent := 0
	var num [12]byte
	for k := from; k < p.n; k++ {
		if p.k > 0 && k == p.k {
			atomic.AddInt64(&stats.Cut, 1)
			if tc, ok := c.(*net.TCPConn); ok {
				tc.SetLinger(0)
			}
			return false
		}
		if p.i > 0 && k > from {
			if w := time.Until(s0.Add(time.Duration((k-from)*p.i) * time.Microsecond)); w > 0 {
				time.Sleep(w)
			}
		}
		if running {
			// As vLLM: the totals so far are the last member of every chunk.
			made := k - from + 1
			buf = chunk(buf, head, pre+string(strconv.AppendInt(num[:0], int64(k), 10)),
				post[:len(post)-1], `,"usage":{"prompt_tokens":`+strconv.Itoa(in)+`,"total_tokens":`+strconv.Itoa(in+made)+`,"completion_tokens":`+strconv.Itoa(made)+`}}`)
		} else {
			buf = chunk(buf, head, pre, string(strconv.AppendInt(num[:0], int64(k), 10)), post)
		}
		sent++
		if sent == p.b || k == p.n-1 || p.i > 0 {
			if _, err := c.Write(buf); err != nil {
				return abort(k)
			}
			atomic.AddInt64(&stats.Chunks, int64(sent))
			atomic.AddInt64(&stats.CompletionTokens, int64(sent))
			sent = 0
			buf = buf[:0]
		}
	}
	if chat {
		buf = chunk(buf, head, `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`, "", "")
	} else {
		buf = chunk(buf, head, `{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}`, "", "")
	}
	if usage {
		buf = chunk(buf, head, `],"usage":`, us, `}`)
	}
	buf = append(buf, "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"...)
	if _, err := c.Write(buf); err != nil {
		return abort(p.n)
	}
	atomic.AddInt64(&stats.StreamsDone, 1)
	atomic.AddInt64(&stats.PromptTokens, int64(in))
	return true
}

func chunk(b []byte, a, x, y, z string) []byte {
	n := len(a) + len(x) + len(y) + len(z) + 2
	b = strconv.AppendInt(b, int64(n), 16)
	b = append(b, '\r', '\n')
	b = append(b, a...)
	b = append(b, x...)
	b = append(b, y...)
	b = append(b, z...)
	return append(b, '\n', '\n', '\r', '\n')
}

func metrics() []byte {
	l := `{model_name="` + models[0] + `",engine="0"}`
	run := atomic.LoadInt64(&stats.Running)
	var b bytes.Buffer
	w := func(n, t string, v any) { fmt.Fprintf(&b, "# HELP %s fake\n# TYPE %s %s\n%s%s %v\n", n, n, t, n, l, v) }
	w("vllm:num_requests_running", "gauge", float64(run))
	w("vllm:num_requests_waiting", "gauge", 0.0)
	w("vllm:kv_cache_usage_perc", "gauge", float64(run)/1000)
	w("vllm:gpu_cache_usage_perc", "gauge", float64(run)/1000)
	w("vllm:prompt_tokens_total", "counter", float64(atomic.LoadInt64(&stats.PromptTokens)))
	w("vllm:generation_tokens_total", "counter", float64(atomic.LoadInt64(&stats.CompletionTokens)))
	return b.Bytes()
}

func statsJSON() []byte {
	pm := map[string]int64{}
	perModel.Range(func(k, v any) bool { pm[k.(string)] = atomic.LoadInt64(v.(*int64)); return true })
	lastMu.Lock()
	defer lastMu.Unlock()
	b, _ := json.Marshal(map[string]any{"name": name, "counters": stats, "per_model": pm, "aborts": aborts, "last_headers": lastHdr, "uptime_s": time.Since(started).Seconds()})
	return b
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9100", "listen address (loopback only)")
	flag.StringVar(&key, "key", os.Getenv("FAKE_KEY"), "bearer key that callers must send; empty: none")
	flag.StringVar(&name, "name", "b0", "backend name, sent as X-Backend")
	ms := flag.String("models", "fake", "comma list for /v1/models")
	flag.StringVar(&owner, "owner", "fake", "owned_by in /v1/models: vllm makes a gateway ask for running usage")
	flag.IntVar(&def.d, "d", 0, "delay ms")
	flag.IntVar(&def.n, "n", 16, "chunks / completion tokens")
	flag.IntVar(&def.i, "i", 0, "interval us")
	flag.IntVar(&def.p, "p", 12, "prompt tokens")
	flag.IntVar(&def.b, "b", 1, "chunks per write")
	flag.Parse()
	models = strings.Split(*ms, ",")
	host, _, err := net.SplitHostPort(*addr)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		log.Fatal("loopback addresses only")
	}
	ln, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-sig; os.Exit(0) }()
	for {
		c, err := ln.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(c)
	}
}
