package verify

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// freshFor: keys that were loaded longer ago are loaded again.
	freshFor = 5 * time.Minute
	// pauseFor is the least time between the starts of two loads.
	pauseFor = 30 * time.Second
	// keptFor: keys that were loaded longer ago are not used, also if they cannot be loaded again.
	keptFor          = 24 * time.Hour
	fetchTimeout     = 5 * time.Second
	responseBytesMax = 65_536
)

// PublicKeys are the keys for signature "ed25519": of Keys, KeysJSON, KeysURL or KeysFunc. KeysURL and KeysFunc keep what they have
// loaded: create them once, not for each request.
type PublicKeys interface {
	current() ([]ed25519.PublicKey, error)
	// renewed returns keys that are loaded now, unless the last load was just before; nil if nothing is loaded.
	renewed() ([]ed25519.PublicKey, error)
}

type fixedKeys struct {
	keys []ed25519.PublicKey
	err  error
}

func (f *fixedKeys) current() ([]ed25519.PublicKey, error) { return f.keys, f.err }
func (f *fixedKeys) renewed() ([]ed25519.PublicKey, error) { return nil, nil }

// Keys are public keys (whpk_…).
func Keys(texts ...string) PublicKeys {
	keys, err := parseKeys(texts)
	return &fixedKeys{keys, err}
}

// KeysJSON are the keys of what /meta responds with, of its public_keys, or one key as JSON.
func KeysJSON(text []byte) PublicKeys {
	keys, err := parseJSON(text)
	return &fixedKeys{keys, err}
}

// KeysURL are the keys that the URL of /meta responds with. They are kept for five minutes, and loaded again when none of them
// matches, at most once in 30 seconds.
func KeysURL(address string) PublicKeys {
	return KeysFunc(func() ([]byte, error) { return fetch(address) })
}

// KeysFunc are keys that a function loads, as KeysURL does. The function returns what KeysJSON takes.
func KeysFunc(load func() ([]byte, error)) PublicKeys {
	return &loadedKeys{load: load, now: time.Now}
}

func checkPublicKeys(s *signature, body []byte, source PublicKeys) error {
	if source == nil {
		return failure(NoPublicKeys, "A delivery signed with ed25519 needs PublicKeys: those of /meta.")
	}
	for _, keysOf := range []func() ([]ed25519.PublicKey, error){source.current, source.renewed} {
		keys, err := keysOf()
		if err != nil {
			return err
		}
		signed := s.signed(body)
		for _, key := range keys {
			for _, value := range s.values {
				if ed25519.Verify(key, signed, value) {
					return nil
				}
			}
		}
	}
	return failure(UnknownKey, "No public key matches: it is of another server, or the body was changed on its way.")
}

func parseKeys(texts []string) ([]ed25519.PublicKey, error) {
	keys := make([]ed25519.PublicKey, 0, len(texts))
	for _, text := range texts {
		encoded, hasPrefix := strings.CutPrefix(text, "whpk_")
		key := fromBase64(encoded)
		if !hasPrefix || len(encoded) != 44 || len(key) != ed25519.PublicKeySize {
			return nil, failure(MalformedPublicKey, "A public key is whpk_ and the base64 of 32 bytes, as public_keys of "+
				"/meta has it.")
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func parseJSON(text []byte) ([]ed25519.PublicKey, error) {
	var document struct {
		PublicKeys json.RawMessage `json:"public_keys"`
	}
	if json.Unmarshal(text, &document) == nil && document.PublicKeys != nil {
		text = document.PublicKeys
	}
	var list []json.RawMessage
	if json.Unmarshal(text, &list) != nil {
		list = []json.RawMessage{text}
	}
	texts := make([]string, len(list))
	for i, each := range list {
		var object struct {
			Key string `json:"key"`
		}
		if json.Unmarshal(each, &texts[i]) != nil && json.Unmarshal(each, &object) == nil {
			texts[i] = object.Key
		}
	}
	return parseKeys(texts)
}

// loadedKeys: none → loading → kept → loading (old, or none matches) → kept
type loadedKeys struct {
	load func() ([]byte, error)
	now  func() time.Time

	// Others wait for the load that has begun.
	mutex    sync.Mutex
	keys     []ed25519.PublicKey
	loadedAt time.Time
	triedAt  time.Time
	err      error
}

func (l *loadedKeys) current() ([]ed25519.PublicKey, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.keys != nil && l.now().Sub(l.loadedAt) < freshFor {
		return l.keys, nil
	}
	return l.reload()
}

func (l *loadedKeys) renewed() ([]ed25519.PublicKey, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.reload()
}

func (l *loadedKeys) reload() ([]ed25519.PublicKey, error) {
	if l.triedAt.IsZero() || l.now().Sub(l.triedAt) >= pauseFor {
		l.triedAt = l.now()
		text, err := l.load()
		if err == nil {
			var keys []ed25519.PublicKey
			if keys, err = parseJSON(text); err == nil {
				l.keys, l.loadedAt = keys, l.now()
			}
		}
		l.err = err
	}
	if l.keys != nil && l.now().Sub(l.loadedAt) < keptFor {
		return l.keys, nil
	}
	return nil, &Error{KeysUnavailable, fmt.Sprintf("The public keys could not be loaded: %v", l.err), l.err}
}

func fetch(address string) ([]byte, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	host := parsed.Hostname()
	if parsed.Scheme != "https" && host != "localhost" && host != "127.0.0.1" && host != "::1" {
		return nil, errors.New("the URL must begin with https://")
	}
	client := http.Client{
		Timeout:       fetchTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Get(address)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, responseBytesMax+1))
	if err == nil && len(text) > responseBytesMax {
		err = fmt.Errorf("more than %d bytes", responseBytesMax)
	}
	return text, err
}
