package verify

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"regexp"
	"strings"
)

// examinedBytesMax limits the bodies that are examined for the reason why no secret matches.
const examinedBytesMax = 300_000

// startOfTimed matches the signed bytes of a timestamp signature, which are no JSON.
var startOfTimed = regexp.MustCompile(`^[0-9]+\.([^0-9]|$)`)

func checkSecrets(s *signature, body []byte, secrets []string) error {
	if len(secrets) == 0 {
		return failure(NoSecret, "A delivery signed with %s needs a secret.", s.format)
	}
	keys := make([][]byte, 0, len(secrets))
	for _, secret := range secrets {
		key := []byte(secret)
		if s.format == formatStandard {
			key = fromBase64(strings.TrimPrefix(secret, "whsec_"))
		}
		if secret != strings.TrimSpace(secret) || len(key) == 0 {
			return failure(MalformedSecret, "A secret is whsec_ and base64, without spaces around it.")
		}
		keys = append(keys, key)
	}
	// The body of a sha256 signature could be the signed bytes of a timestamp one, which nothing would protect from replays.
	isOther := s.format == formatSHA256 && startOfTimed.Match(body[:min(len(body), 32)])
	if isOther || !isSigned(s, body, keys) {
		return failure(NoMatchingSecret, "%s", reasonOf(s, body, keys))
	}
	return nil
}

func isSigned(s *signature, body []byte, keys [][]byte) bool {
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(s.start))
		mac.Write(body)
		expected := mac.Sum(nil)
		for _, value := range s.values {
			if hmac.Equal(value, expected) {
				return true
			}
		}
	}
	return false
}

func reasonOf(s *signature, body []byte, keys [][]byte) string {
	if len(body) == 0 {
		return "The body is empty: something has read it before."
	}
	for _, text := range rewritten(body) {
		if isSigned(s, text, keys) {
			return "The body was changed: the secret matches the same JSON with other white space. Pass the bytes of the request."
		}
	}
	return "The secret is of another subscription or was replaced, or the body was changed on its way."
}

// rewritten returns the same JSON as other serializers write it: without spaces, and with one after each comma and colon.
func rewritten(body []byte) [][]byte {
	var compact bytes.Buffer
	if len(body) > examinedBytesMax || json.Compact(&compact, body) != nil {
		return nil
	}
	var spaced bytes.Buffer
	isText, isEscaped := false, false
	for _, each := range compact.Bytes() {
		spaced.WriteByte(each)
		switch {
		case isEscaped:
			isEscaped = false
		case isText && each == '\\':
			isEscaped = true
		case each == '"':
			isText = !isText
		case !isText && (each == ',' || each == ':'):
			spaced.WriteByte(' ')
		}
	}
	return [][]byte{compact.Bytes(), spaced.Bytes(), bytes.TrimSpace(body)}
}
