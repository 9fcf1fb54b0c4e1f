package verify

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func signed(body string, age time.Duration) http.Header {
	at := time.Now().Add(-age).Unix()
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%d.%s", at, body)
	header := http.Header{}
	header.Set("Nuncio-Event", "push")
	header.Set("Nuncio-Sequence", "7")
	header.Set("Nuncio-Delivery", "5b0c7a41-9e2d-8f3a-8c41-000000000007")
	header.Set("Nuncio-Signature", fmt.Sprintf("t=%d,v1=%s", at, hex.EncodeToString(mac.Sum(nil))))
	return header
}

func codeOf(err error) Code {
	var known *Error
	if errors.As(err, &known) {
		return known.Code
	}
	return ""
}

func TestToleranceLimitsTheAgeInBothDirections(t *testing.T) {
	for _, each := range []struct {
		age, tolerance time.Duration
		code           Code
	}{
		{240 * time.Second, 0, ""},
		{-240 * time.Second, 0, ""},
		{302 * time.Second, 0, TooOld},
		{-330 * time.Second, 0, TooNew},
		{70 * time.Second, time.Minute, TooOld},
	} {
		_, err := Verify(signed("{}", each.age), []byte("{}"), Options{Secret: secret, Tolerance: each.tolerance})
		if codeOf(err) != each.code {
			t.Errorf("%v: %v", each, err)
		}
	}
	if _, err := Verify(signed("{}", 0), []byte("{}"), Options{Secret: secret, Tolerance: -1}); err == nil || codeOf(err) != "" {
		t.Error("a negative tolerance is an error of the program")
	}
}

func TestTheReasonSaysThatJSONWasSerializedAgain(t *testing.T) {
	sent := `{"name":"Zoë","list":[1,{"a":"x, y: \"z"}]}`
	var indented bytes.Buffer
	if err := json.Indent(&indented, []byte(sent), "", "  "); err != nil {
		t.Fatal(err)
	}
	_, err := Verify(signed(sent, 0), indented.Bytes(), Options{Secret: secret})
	if codeOf(err) != NoMatchingSecret || !strings.Contains(err.Error(), "other white space") {
		t.Error(err)
	}
	_, err = Verify(signed(sent, 0), bytes.Repeat([]byte("["), 100_000), Options{Secret: secret})
	if !strings.Contains(err.Error(), "another subscription") {
		t.Error(err)
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	if (&Error{Code: MissingHeader}).Status() != 401 || (&Error{Code: KeysUnavailable}).Status() != 503 {
		t.Error("another status")
	}
	for _, each := range readVectors(t) {
		if each.Error != "" && each.Error != "body-parsed" && (&Error{Code: each.Error}).Status() == 0 {
			t.Error(each.Error)
		}
	}
}

func post(t *testing.T, url string, header http.Header, body string) (int, string) {
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

func TestHandlerVerifiesRequests(t *testing.T) {
	var seen []string
	server := httptest.NewServer(HandlerFunc(Options{Secret: secret}, func(w http.ResponseWriter, r *http.Request, delivery Delivery) error {
		body, err := io.ReadAll(r.Body)
		seen = append(seen, delivery.Kind+string(body)+DeliveryOf(r).ID[:4])
		switch string(body) {
		case `"busy"`:
			return failure(Busy, "busy")
		case `"fail"`:
			return errors.New("the password of the database")
		case `"teapot"`:
			w.WriteHeader(http.StatusTeapot)
		}
		return err
	}))
	defer server.Close()
	for _, each := range []struct {
		body   string
		status int
	}{{"{}", 204}, {`"busy"`, 503}, {`"fail"`, 500}, {`"teapot"`, 418}} {
		status, text := post(t, server.URL, signed(each.body, 0), each.body)
		if status != each.status || strings.Contains(text, "password") {
			t.Error(each, status, text)
		}
	}
	if status, text := post(t, server.URL, signed("{}", 0), "{ }"); status != 401 || !strings.Contains(text, `"error":"no-matching-secret"`) {
		t.Error(status, text)
	}
	if status, _ := post(t, server.URL, signed("{}", 0), strings.Repeat("x", bodyBytesMax+1)); status != 413 {
		t.Error(status)
	}
	if len(seen) != 4 || seen[0] != "push{}5b0c" {
		t.Error(seen)
	}
}

func TestDeliveryOfPanicsWithoutHandler(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	DeliveryOf(httptest.NewRequest(http.MethodPost, "/", nil))
}

func example(t *testing.T) vector {
	for _, each := range readVectors(t) {
		if each.Name == "ed25519: the published example" {
			return each
		}
	}
	t.Fatal("no example")
	return vector{}
}

func TestKeysOfAURLAreKeptAndLoadedAgain(t *testing.T) {
	each := example(t)
	var requests atomic.Int64
	var isDown atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		if isDown.Load() {
			w.WriteHeader(500)
		}
		fmt.Fprintf(w, `{"public_keys":%s}`, each.PublicKeys)
	}))
	defer server.Close()
	keys := KeysURL(server.URL).(*loadedKeys)
	check := func(body string) Code {
		_, err := Verify(each.header(t), []byte(body), Options{PublicKeys: keys, Tolerance: 1<<63 - 1})
		return codeOf(err)
	}
	body := string(each.body(t))
	var group sync.WaitGroup
	for i := 0; i < 10; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			if code := check(body); code != "" {
				t.Error(code)
			}
		}()
	}
	group.Wait()
	if code := check("forged"); code != UnknownKey || requests.Load() != 1 {
		t.Error(code, requests.Load())
	}
	later := func(age time.Duration) {
		start := time.Now()
		keys.now = func() time.Time { return start.Add(age) }
	}
	later(6 * time.Minute)
	if code := check(body); code != "" || requests.Load() != 2 {
		t.Error(code, requests.Load())
	}
	isDown.Store(true)
	later(20 * time.Hour)
	if code := check(body); code != "" || requests.Load() != 3 {
		t.Error(code, requests.Load())
	}
	later(26 * time.Hour)
	if code := check(body); code != KeysUnavailable {
		t.Error(code)
	}
}

func TestResponsesThatAreNoKeysAreUnavailable(t *testing.T) {
	each := example(t)
	for name, respond := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) },
		"too much":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte(" "), 70_000)) },
		"malformed":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `[{"key":"whpk_x"}]`) },
	} {
		server := httptest.NewServer(respond)
		_, err := Verify(each.header(t), each.body(t), Options{PublicKeys: KeysURL(server.URL), Tolerance: 1<<63 - 1})
		if codeOf(err) != KeysUnavailable {
			t.Error(name, err)
		}
		server.Close()
	}
	_, err := Verify(each.header(t), each.body(t), Options{PublicKeys: KeysURL("http://192.0.2.1/meta"), Tolerance: 1<<63 - 1})
	if codeOf(err) != KeysUnavailable {
		t.Error(err)
	}
}
