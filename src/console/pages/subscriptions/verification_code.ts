/**
 * Code that verifies a delivery, for each shape of the signature in six languages. A test runs the code for Node.js, and
 * that for Python as far as it needs no library, on deliveries that the server has signed.
 */

export interface Sample {
  language: string;
  code: string;
}

/** What the code needs to know of the server. */
export interface SampleFacts {
  /** Names of headers as this server sends them. */
  headers: { signature: string };
  /** `whpk_…`; for `ed25519`. */
  publicKey: string;
}

export function samplesFor(signature: string, facts: SampleFacts): readonly Sample[] {
  if (signature === 'sha256') return sha256(facts.headers.signature);
  if (signature === 'standard') return standard;
  if (signature === 'ed25519') return ed25519(facts.publicKey);
  return timestamp(facts.headers.signature);
}

const timestamp = (header: string): Sample[] => [
  {
    language: 'Node.js',
    code: `import { createHmac, timingSafeEqual } from 'node:crypto';

// body: the bytes as they came, not parsed and written again
export function verify(body, headers, secret) {
  const parts = headers['${header.toLowerCase()}'].split(',').map((part) => part.split('='));
  const time = parts.find(([name]) => name === 't')?.[1];
  if (Math.abs(Date.now() / 1000 - Number(time)) > 300) return false;
  const expected = createHmac('sha256', secret).update(time + '.').update(body).digest();
  return parts.some(([name, hex]) => {
    const given = Buffer.from(name === 'v1' ? hex : '', 'hex');
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}`,
  },
  {
    language: 'Python',
    code: `import hashlib, hmac, time

# body: the bytes as they came, not parsed and written again
def verify(body: bytes, headers, secret: str) -> bool:
    parts = [part.split("=", 1) for part in headers["${header}"].split(",")]
    sent_at = next(value for name, value in parts if name == "t")
    if abs(time.time() - int(sent_at)) > 300:
        return False
    signed = sent_at.encode() + b"." + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return any(name == "v1" and hmac.compare_digest(value, expected) for name, value in parts)`,
  },
  {
    language: 'Go',
    code: `func Verify(body []byte, header http.Header, secret string) bool {
	var sentAt string
	var signatures []string
	for _, part := range strings.Split(header.Get("${header}"), ",") {
		name, value, _ := strings.Cut(part, "=")
		if name == "t" {
			sentAt = value
		} else if name == "v1" {
			signatures = append(signatures, value)
		}
	}
	seconds, err := strconv.ParseInt(sentAt, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(sentAt + "."))
	mac.Write(body)
	expected := mac.Sum(nil)
	for _, signature := range signatures {
		given, _ := hex.DecodeString(signature)
		if hmac.Equal(given, expected) {
			return true
		}
	}
	return false
}`,
  },
  {
    language: 'Ruby',
    code: `require "openssl"

# body: request.body.read
def verify(body, headers, secret)
  parts = headers["${header}"].split(",").map { |part| part.split("=", 2) }
  sent_at = parts.assoc("t")&.last.to_s
  return false if (Time.now.to_i - sent_at.to_i).abs > 300
  expected = OpenSSL::HMAC.hexdigest("SHA256", secret, "#{sent_at}.#{body}")
  parts.any? { |name, value| name == "v1" && OpenSSL.secure_compare(value, expected) }
end`,
  },
  {
    language: 'PHP',
    code: `// $body: file_get_contents('php://input')
function verify(string $body, string $header, string $secret): bool {
    $sentAt = '';
    $signatures = [];
    foreach (explode(',', $header) as $part) {
        [$name, $value] = explode('=', $part, 2);
        if ($name === 't') $sentAt = $value;
        if ($name === 'v1') $signatures[] = $value;
    }
    if (abs(time() - (int) $sentAt) > 300) return false;
    $expected = hash_hmac('sha256', "$sentAt.$body", $secret);
    foreach ($signatures as $signature) {
        if (hash_equals($expected, $signature)) return true;
    }
    return false;
}
verify($body, $_SERVER['${serverVariable(header)}'] ?? '', $secret);`,
  },
  {
    language: 'Java',
    code: `static boolean verify(byte[] body, String header, String secret) throws GeneralSecurityException {
  String sentAt = "";
  List<String> signatures = new ArrayList<>();
  for (String part : header.split(",")) {
    if (part.startsWith("t=")) sentAt = part.substring(2);
    if (part.startsWith("v1=")) signatures.add(part.substring(3));
  }
  if (Math.abs(Instant.now().getEpochSecond() - Long.parseLong(sentAt)) > 300) return false;
  Mac mac = Mac.getInstance("HmacSHA256");
  mac.init(new SecretKeySpec(secret.getBytes(UTF_8), "HmacSHA256"));
  mac.update((sentAt + ".").getBytes(UTF_8));
  byte[] expected = mac.doFinal(body);
  return signatures.stream()
      .anyMatch(given -> MessageDigest.isEqual(HexFormat.of().parseHex(given), expected));
}
// header: request.getHeader("${header}")`,
  },
];

const sha256 = (header: string): Sample[] => [
  {
    language: 'Node.js',
    code: `import { createHmac, timingSafeEqual } from 'node:crypto';

// body: the bytes as they came, not parsed and written again
export function verify(body, headers, secret) {
  const expected = Buffer.from('sha256=' + createHmac('sha256', secret).update(body).digest('hex'));
  const given = Buffer.from(headers['${header.toLowerCase()}'] ?? '');
  return given.length === expected.length && timingSafeEqual(given, expected);
}`,
  },
  {
    language: 'Python',
    code: `import hashlib, hmac

# body: the bytes as they came, not parsed and written again
def verify(body: bytes, headers, secret: str) -> bool:
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(headers["${header}"], expected)`,
  },
  {
    language: 'Go',
    code: `func Verify(body []byte, header http.Header, secret string) bool {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	expected := "sha256=" + hex.EncodeToString(mac.Sum(nil))
	return hmac.Equal([]byte(header.Get("${header}")), []byte(expected))
}`,
  },
  {
    language: 'Ruby',
    code: `require "openssl"

# body: request.body.read
def verify(body, headers, secret)
  expected = "sha256=" + OpenSSL::HMAC.hexdigest("SHA256", secret, body)
  OpenSSL.secure_compare(headers["${header}"].to_s, expected)
end`,
  },
  {
    language: 'PHP',
    code: `// $body: file_get_contents('php://input')
$expected = 'sha256=' . hash_hmac('sha256', $body, $secret);
$isGenuine = hash_equals($expected, $_SERVER['${serverVariable(header)}'] ?? '');`,
  },
  {
    language: 'Java',
    code: `static boolean verify(byte[] body, String header, String secret) throws GeneralSecurityException {
  Mac mac = Mac.getInstance("HmacSHA256");
  mac.init(new SecretKeySpec(secret.getBytes(UTF_8), "HmacSHA256"));
  String expected = "sha256=" + HexFormat.of().formatHex(mac.doFinal(body));
  return MessageDigest.isEqual(expected.getBytes(UTF_8), header.getBytes(UTF_8));
}
// header: request.getHeader("${header}")`,
  },
];

const standard: readonly Sample[] = [
  {
    language: 'Node.js',
    code: `// npm install standardwebhooks
import { Webhook } from 'standardwebhooks';

// body: the text as it came; throws where the signature is wrong or old
export function verify(body, headers, secret) {
  return new Webhook(secret).verify(body, headers);
}`,
  },
  {
    language: 'Python',
    code: `# pip install standardwebhooks
from standardwebhooks import Webhook

# body: the text as it came; raises where the signature is wrong or old
def verify(body, headers, secret):
    return Webhook(secret).verify(body, headers)`,
  },
  {
    language: 'Go',
    code: `import standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

func Verify(body []byte, header http.Header, secret string) error {
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return err
	}
	return webhook.Verify(body, header)
}`,
  },
  {
    language: 'Ruby',
    code: `# gem install standardwebhooks
require "standardwebhooks"

# raises where the signature is wrong or old
def verify(body, headers, secret)
  StandardWebhooks::Webhook.new(secret).verify(body, headers)
end`,
  },
  {
    language: 'PHP',
    code: `// composer require standard-webhooks/standard-webhooks
$webhook = new \\StandardWebhooks\\Webhook($secret);
// throws where the signature is wrong or old
$event = $webhook->verify(file_get_contents('php://input'), getallheaders());`,
  },
  {
    language: 'Java',
    code: `// com.standardwebhooks:standardwebhooks
var webhook = new com.standardwebhooks.Webhook(secret);
// throws where the signature is wrong or old
webhook.verify(body, request.headers());`,
  },
];

const ed25519 = (publicKey: string): Sample[] => [
  {
    language: 'Node.js',
    code: `import { createPublicKey, verify as verifySignature } from 'node:crypto';

const publicKey = '${publicKey}'; // GET /meta
const key = createPublicKey({
  format: 'jwk',
  key: { kty: 'OKP', crv: 'Ed25519', x: Buffer.from(publicKey.slice(5), 'base64').toString('base64url') },
});

// body: the bytes as they came, not parsed and written again
export function verify(body, headers) {
  const { 'webhook-id': id, 'webhook-timestamp': time, 'webhook-signature': signatures } = headers;
  if (Math.abs(Date.now() / 1000 - Number(time)) > 300) return false;
  const signed = Buffer.concat([Buffer.from(id + '.' + time + '.'), Buffer.from(body)]);
  return signatures.split(' ').some((signature) => {
    const [version, value] = signature.split(',');
    return version === 'v1a' && verifySignature(null, signed, key, Buffer.from(value, 'base64'));
  });
}`,
  },
  {
    language: 'Python',
    code: `# pip install cryptography
import base64, time
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

public_key = "${publicKey}"  # GET /meta
key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key[5:]))

def verify(body: bytes, headers) -> bool:
    sent_at = headers["webhook-timestamp"]
    if abs(time.time() - int(sent_at)) > 300:
        return False
    signed = f"{headers['webhook-id']}.{sent_at}.".encode() + body
    for signature in headers["webhook-signature"].split(" "):
        version, _, value = signature.partition(",")
        try:
            if version == "v1a":
                key.verify(base64.b64decode(value), signed)
                return True
        except InvalidSignature:
            pass
    return False`,
  },
  {
    language: 'Go',
    code: `const publicKey = "${publicKey}" // GET /meta

func Verify(body []byte, header http.Header) bool {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(publicKey, "whpk_"))
	id, sentAt := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(sentAt, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	signed := append([]byte(id+"."+sentAt+"."), body...)
	for _, each := range strings.Fields(header.Get("Webhook-Signature")) {
		version, value, _ := strings.Cut(each, ",")
		signature, _ := base64.StdEncoding.DecodeString(value)
		if version == "v1a" && ed25519.Verify(key, signed, signature) {
			return true
		}
	}
	return false
}`,
  },
  {
    language: 'Ruby',
    code: `# gem install ed25519
require "ed25519"
require "base64"

PUBLIC_KEY = "${publicKey}" # GET /meta
KEY = Ed25519::VerifyKey.new(Base64.decode64(PUBLIC_KEY.delete_prefix("whpk_")))

def verify(body, headers)
  sent_at = headers["webhook-timestamp"]
  return false if (Time.now.to_i - sent_at.to_i).abs > 300
  signed = "#{headers["webhook-id"]}.#{sent_at}.#{body}"
  headers["webhook-signature"].split.any? do |each|
    version, value = each.split(",", 2)
    version == "v1a" && KEY.verify(Base64.decode64(value), signed)
  rescue Ed25519::VerifyError
    false
  end
end`,
  },
  {
    language: 'PHP',
    code: `$publicKey = base64_decode(substr('${publicKey}', 5)); // GET /meta
$id = $_SERVER['HTTP_WEBHOOK_ID'];
$sentAt = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'];
$isGenuine = false;
foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE']) as $each) {
    [$version, $value] = explode(',', $each, 2);
    if ($version !== 'v1a') continue;
    $isGenuine = $isGenuine
        || sodium_crypto_sign_verify_detached(base64_decode($value), "$id.$sentAt.$body", $publicKey);
}
$isGenuine = $isGenuine && abs(time() - (int) $sentAt) <= 300;`,
  },
  {
    language: 'Java',
    code: `static final String PUBLIC_KEY = "${publicKey}"; // GET /meta

static boolean verify(byte[] body, HttpServletRequest request) throws GeneralSecurityException {
  // The 32 bytes of the key after the header of an Ed25519 SubjectPublicKeyInfo.
  byte[] spki = HexFormat.of().parseHex("302a300506032b6570032100" +
      HexFormat.of().formatHex(Base64.getDecoder().decode(PUBLIC_KEY.substring(5))));
  PublicKey key = KeyFactory.getInstance("Ed25519").generatePublic(new X509EncodedKeySpec(spki));
  String sentAt = request.getHeader("webhook-timestamp");
  if (Math.abs(Instant.now().getEpochSecond() - Long.parseLong(sentAt)) > 300) return false;
  for (String each : request.getHeader("webhook-signature").split(" ")) {
    if (!each.startsWith("v1a,")) continue;
    Signature signature = Signature.getInstance("Ed25519");
    signature.initVerify(key);
    signature.update((request.getHeader("webhook-id") + "." + sentAt + ".").getBytes(UTF_8));
    signature.update(body);
    if (signature.verify(Base64.getDecoder().decode(each.substring(4)))) return true;
  }
  return false;
}`,
  },
];

/** RFC 3875 section 4.1.18: how a header is called in the environment of a CGI program. */
function serverVariable(header: string): string {
  return `HTTP_${header.toUpperCase().replaceAll('-', '_')}`;
}
