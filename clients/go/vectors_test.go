package verify

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// vector is a case that the libraries of all languages share.
type vector struct {
	Name        string          `json:"name"`
	Secrets     []string        `json:"secrets"`
	PublicKeys  json.RawMessage `json:"public_keys"`
	KeysFail    bool            `json:"keys_fail"`
	HeaderNames json.RawMessage `json:"header_names"`
	Tolerance   *int64          `json:"tolerance"`
	Headers     json.RawMessage `json:"headers"`
	Body        json.RawMessage `json:"body"`
	BodyBase64  *string         `json:"body_base64"`
	Delivery    *Delivery       `json:"delivery"`
	Error       Code            `json:"error"`
}

func readVectors(t *testing.T) []vector {
	t.Helper()
	path := os.Getenv("VECTORS")
	if path == "" {
		path = "../../test/vectors/signatures.json"
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []vector }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Cases
}

func (v vector) header(t *testing.T) http.Header {
	header := http.Header{}
	var pairs [][2]string
	if json.Unmarshal(v.Headers, &pairs) == nil {
		for _, pair := range pairs {
			header[pair[0]] = append(header[pair[0]], pair[1])
		}
		return header
	}
	var values map[string]any
	if err := json.Unmarshal(v.Headers, &values); err != nil {
		t.Fatal(err)
	}
	for name, value := range values {
		switch value := value.(type) {
		case string:
			header[name] = []string{value}
		case []any:
			for _, each := range value {
				header[name] = append(header[name], each.(string))
			}
		}
	}
	return header
}

func (v vector) options(t *testing.T) Options {
	options := Options{Secrets: v.Secrets, Tolerance: 1<<63 - 1}
	if v.Tolerance != nil {
		options.Tolerance = time.Duration(*v.Tolerance) * time.Second
	}
	switch {
	case v.KeysFail:
		options.PublicKeys = KeysFunc(func() ([]byte, error) { return nil, errors.New("no keys") })
	case v.PublicKeys != nil:
		options.PublicKeys = KeysJSON(v.PublicKeys)
	}
	switch string(v.HeaderNames) {
	case "":
	case `"github"`:
		options.HeaderNames = GitHubHeaders
	case `"stripe"`:
		options.HeaderNames = StripeHeaders
	default:
		if err := json.Unmarshal(v.HeaderNames, &options.HeaderNames); err != nil {
			t.Fatal(err)
		}
	}
	return options
}

func (v vector) body(t *testing.T) []byte {
	if v.BodyBase64 != nil {
		body, err := base64.StdEncoding.DecodeString(*v.BodyBase64)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	var text *string
	if err := json.Unmarshal(v.Body, &text); err != nil {
		t.Fatal(err)
	}
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func TestVectors(t *testing.T) {
	vectors, ran := readVectors(t), 0
	for _, each := range vectors {
		// The type of a body excludes an object.
		if each.Error == "body-parsed" {
			continue
		}
		ran++
		t.Run(each.Name, func(t *testing.T) {
			delivery, err := Verify(each.header(t), each.body(t), each.options(t))
			if each.Delivery != nil {
				if err != nil || !reflect.DeepEqual(delivery, *each.Delivery) {
					t.Fatalf("%+v, %v", delivery, err)
				}
				return
			}
			var known *Error
			if !errors.As(err, &known) || known.Code != each.Error {
				t.Fatalf("%v in place of %s", err, each.Error)
			}
			for _, secret := range each.Secrets {
				if len(secret) > 10 && strings.Contains(known.Message, strings.TrimSpace(secret)) {
					t.Fatal("the message has the secret")
				}
			}
		})
	}
	if ran < 100 || ran < len(vectors)-2 {
		t.Fatalf("%d of %d vectors", ran, len(vectors))
	}
	t.Logf("%d vectors", ran)
}
