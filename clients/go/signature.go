package verify

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
)

// The formats of signatures. The headers say which one a delivery has:
//
//	timestamp   Nuncio-Signature: t=<unix seconds>,v1=<hex>,v1=<hex>        HMAC-SHA256 of "<t>.<body>"
//	sha256      Nuncio-Signature: sha256=<hex>                              HMAC-SHA256 of the body
//	standard    webhook-signature: v1,<base64> v1,<base64>                  HMAC-SHA256 of "<id>.<t>.<body>"
//	ed25519     webhook-signature: v1a,<base64>                             Ed25519 of "<id>.<t>.<body>"
const (
	formatTimestamp = "timestamp"
	formatSHA256    = "sha256"
	formatStandard  = "standard"
	formatEd25519   = "ed25519"
)

const (
	// valueLengthMax is the longest value of a header. The server's longest one has a few hundred characters.
	valueLengthMax = 4_096
	// valuesMax is the most values that are read. The server writes one for each live secret or key.
	valuesMax = 16
)

type signature struct {
	format    string
	id        string
	timestamp *int64
	// start is what is signed before the body.
	start string
	// values are those of the signature. Each is of another secret or key.
	values [][]byte
}

func (s *signature) signed(body []byte) []byte { return append([]byte(s.start), body...) }

// finder finds the value of a header, in any case. Values of a repeated header are joined by a comma, as HTTP defines it.
type finder func(name string) (string, bool)

func finderOf(header http.Header) finder {
	values := make(map[string][]string, len(header))
	for name, each := range header {
		name = strings.ToLower(name)
		values[name] = append(values[name], each...)
	}
	return func(name string) (string, bool) {
		found := values[strings.ToLower(name)]
		return strings.Join(found, ", "), len(found) > 0
	}
}

func (find finder) read(name string, hasForm func(string) bool) (string, error) {
	value, exists := find(name)
	if !exists {
		return "", failure(MissingHeader, "The request has no header %s. It is no delivery, or the operator has renamed "+
			"the header (option HeaderNames).", name)
	}
	if len(value) > valueLengthMax || !hasForm(value) {
		return "", malformed(name)
	}
	return value, nil
}

func malformed(name string) *Error {
	return failure(MalformedHeader, "The header %s does not have the form of a delivery's.", name)
}

func anything(string) bool { return true }

// isIdentifier reports whether a text is visible ASCII without a comma, which would join two values.
func isIdentifier(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] < '!' || text[i] > '~' || text[i] == ',' {
			return false
		}
	}
	return len(text) >= 1 && len(text) <= 255
}

func hasDigits(max int) func(string) bool {
	return func(text string) bool {
		return len(text) >= 1 && len(text) <= max && strings.Trim(text, "0123456789") == ""
	}
}

// readSignature reads the signature. A subscriber with public keys expects ed25519 where a delivery has values of both forms.
func readSignature(find finder, names HeaderNames, hasKeys bool) (*signature, error) {
	if _, exists := find("webhook-signature"); exists {
		return readStandard(find, hasKeys)
	}
	return readOwn(find, names)
}

func readStandard(find finder, hasKeys bool) (*signature, error) {
	id, err := find.read("webhook-id", isIdentifier)
	if err != nil {
		return nil, err
	}
	at, err := find.read("webhook-timestamp", hasDigits(12))
	if err != nil {
		return nil, err
	}
	value, err := find.read("webhook-signature", anything)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(value, " ")
	format, values := formatStandard, valuesOf(parts, "v1,")
	if signed := valuesOf(parts, "v1a,"); len(signed) > 0 && (hasKeys || len(values) == 0) {
		format, values = formatEd25519, signed
	}
	decoded, err := decode("webhook-signature", values, fromBase64)
	return &signature{format, id, seconds(at), id + "." + at + ".", decoded}, err
}

func readOwn(find finder, names HeaderNames) (*signature, error) {
	value, err := find.read(names.Signature, anything)
	if err != nil {
		return nil, err
	}
	id, err := find.read(names.Delivery, isIdentifier)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(value, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	hashes, times := valuesOf(parts, "sha256="), valuesOf(parts, "t=")
	if len(hashes) > 0 {
		if len(parts) > 1 {
			return nil, malformed(names.Signature)
		}
		decoded, err := decode(names.Signature, hashes, fromHex)
		return &signature{formatSHA256, id, nil, "", decoded}, err
	}
	if len(times) != 1 || !hasDigits(12)(times[0]) {
		return nil, malformed(names.Signature)
	}
	decoded, err := decode(names.Signature, valuesOf(parts, "v1="), fromHex)
	return &signature{formatTimestamp, id, seconds(times[0]), times[0] + ".", decoded}, err
}

func seconds(digits string) *int64 {
	value, _ := strconv.ParseInt(digits, 10, 64)
	return &value
}

func valuesOf(parts []string, start string) []string {
	var values []string
	for _, part := range parts {
		if value, isOne := strings.CutPrefix(part, start); isOne {
			values = append(values, value)
		}
	}
	return values
}

// decode leaves out values of another form, because others may match.
func decode(name string, values []string, decodeOne func(string) []byte) ([][]byte, error) {
	if len(values) == 0 || len(values) > valuesMax {
		return nil, malformed(name)
	}
	decoded := make([][]byte, 0, len(values))
	for _, value := range values {
		if bytes := decodeOne(value); bytes != nil {
			decoded = append(decoded, bytes)
		}
	}
	return decoded, nil
}

func fromHex(text string) []byte {
	bytes, err := hex.DecodeString(text)
	if err != nil || text == "" || text != strings.ToLower(text) {
		return nil
	}
	return bytes
}

// fromBase64 returns nil if the text is not base64. Padding can be left out.
func fromBase64(text string) []byte {
	encoding := base64.RawStdEncoding
	if strings.HasSuffix(text, "=") {
		encoding = base64.StdEncoding
	}
	bytes, err := encoding.DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return nil
	}
	return bytes
}
