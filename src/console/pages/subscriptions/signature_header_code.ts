/** Verification code for signatures in a single header: `timestamp` and `sha256`. */

import type { Sample } from './code_sample.ts';

/** Frameworks differ in the case of names, and in whether they pass an object or a `Headers`. */
const nodeHeader = (header: string) => `[...(headers.entries?.() ?? Object.entries(headers))]
    .find(([name]) => name.toLowerCase() === '${header.toLowerCase()}')?.[1]`;

const pythonHeader = (header: string) =>
  `{name.lower(): value for name, value in headers.items()}.get("${header.toLowerCase()}", "")`;

const rubyHeader = (header: string) => `(headers["${header}"] || headers["${header.toLowerCase()}"]).to_s`;

export const timestampCode = (header: string): Sample[] => [
  {
    language: 'Node.js',
    code: `import { createHmac, timingSafeEqual } from 'node:crypto';

// body: the raw bytes of the request, not parsed and serialized again
export function verify(body, headers, secret) {
  const header = ${nodeHeader(header)};
  const parts = String(header).split(',').map((part) => part.split('='));
  const time = parts.find(([name]) => name === 't')?.[1];
  // Reject timestamps older than 5 minutes: they may be replays.
  if (!(Math.abs(Date.now() / 1000 - Number(time)) <= 300)) return false;
  const expected = Buffer.from(
    createHmac('sha256', secret).update(time + '.').update(body).digest('hex'),
  );
  return parts.some(([name, value = '']) => {
    const given = Buffer.from(name === 'v1' ? value : '');
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}`,
  },
  {
    language: 'Python',
    code: `import hashlib, hmac, time

# body: the bytes as they came, not parsed and written again
def verify(body: bytes, headers, secret: str) -> bool:
    header = ${pythonHeader(header)}
    parts = [part.partition("=") for part in header.split(",")]
    sent_at = next((value for name, _, value in parts if name == "t"), "")
    try:
        # Older than 5 minutes: it may be a replay.
        if abs(int(time.time()) - int(sent_at)) > 300:
            return False
    except ValueError:
        return False
    signed = sent_at.encode() + b"." + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest().encode()
    return any(
        name == "v1" and hmac.compare_digest(value.encode(), expected) for name, _, value in parts
    )`,
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
	// Reject timestamps older than 5 minutes: they may be replays.
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(sentAt + "."))
	mac.Write(body)
	expected := hex.EncodeToString(mac.Sum(nil))
	for _, signature := range signatures {
		if hmac.Equal([]byte(signature), []byte(expected)) {
			return true
		}
	}
	return false
}`,
  },
  {
    language: 'Ruby',
    code: `require "openssl"

# In Rails: verify(request.raw_post, request.headers, secret)
def verify(body, headers, secret)
  parts = ${rubyHeader(header)}.split(",").map { |part| part.split("=", 2) }
  sent_at = parts.find { |name, _| name == "t" }.to_a.last.to_s
  # Older than 5 minutes: it may be a replay.
  return false if (Time.now.to_i - sent_at.to_i).abs > 300
  expected = OpenSSL::HMAC.hexdigest("SHA256", secret, "#{sent_at}.#{body}")
  parts.any? { |name, value| name == "v1" && OpenSSL.secure_compare(value.to_s, expected) }
end`,
  },
  {
    language: 'PHP',
    code: `function verify(string $body, string $header, string $secret): bool {
    $sentAt = '';
    $signatures = [];
    foreach (explode(',', $header) as $part) {
        [$name, $value] = array_pad(explode('=', $part, 2), 2, '');
        if ($name === 't') $sentAt = $value;
        if ($name === 'v1') $signatures[] = $value;
    }
    // Reject timestamps older than 5 minutes: they may be replays.
    if (abs(time() - (int) $sentAt) > 300) return false;
    $expected = hash_hmac('sha256', "$sentAt.$body", $secret);
    foreach ($signatures as $signature) {
        if (hash_equals($expected, $signature)) return true;
    }
    return false;
}
$isGenuine = verify(
    file_get_contents('php://input'),
    $_SERVER['${serverVariable(header)}'] ?? '',
    $secret,
);`,
  },
  {
    language: 'Java',
    code: `// In a servlet: verify(body, request.getHeader("${header}"), secret)
static boolean verify(byte[] body, String header, String secret) throws GeneralSecurityException {
  String sentAt = "";
  List<String> signatures = new ArrayList<>();
  for (String part : String.valueOf(header).split(",")) {
    if (part.startsWith("t=")) sentAt = part.substring(2);
    if (part.startsWith("v1=")) signatures.add(part.substring(3));
  }
  if (!sentAt.matches("[0-9]{1,12}")) return false;
  // Reject timestamps older than 5 minutes: they may be replays.
  if (Math.abs(Instant.now().getEpochSecond() - Long.parseLong(sentAt)) > 300) return false;
  Mac mac = Mac.getInstance("HmacSHA256");
  mac.init(new SecretKeySpec(secret.getBytes(UTF_8), "HmacSHA256"));
  mac.update((sentAt + ".").getBytes(UTF_8));
  byte[] expected = HexFormat.of().formatHex(mac.doFinal(body)).getBytes(UTF_8);
  return signatures.stream()
      .anyMatch(given -> MessageDigest.isEqual(given.getBytes(UTF_8), expected));
}`,
  },
];

export const sha256Code = (header: string): Sample[] => [
  {
    language: 'Node.js',
    code: `import { createHmac, timingSafeEqual } from 'node:crypto';

// body: the raw bytes of the request, not parsed and serialized again
export function verify(body, headers, secret) {
  const expected = Buffer.from('sha256=' + createHmac('sha256', secret).update(body).digest('hex'));
  const header = ${nodeHeader(header)};
  const given = Buffer.from(header ?? '');
  return given.length === expected.length && timingSafeEqual(given, expected);
}`,
  },
  {
    language: 'Python',
    code: `import hashlib, hmac

# body: the bytes as they came, not parsed and written again
def verify(body: bytes, headers, secret: str) -> bool:
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    header = ${pythonHeader(header)}
    return hmac.compare_digest(header.encode(), expected.encode())`,
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

# In Rails: verify(request.raw_post, request.headers, secret)
def verify(body, headers, secret)
  expected = "sha256=" + OpenSSL::HMAC.hexdigest("SHA256", secret, body)
  OpenSSL.secure_compare(${rubyHeader(header)}, expected)
end`,
  },
  {
    language: 'PHP',
    code: `$body = file_get_contents('php://input');
$expected = 'sha256=' . hash_hmac('sha256', $body, $secret);
$isGenuine = hash_equals($expected, $_SERVER['${serverVariable(header)}'] ?? '');`,
  },
  {
    language: 'Java',
    code: `// In a servlet: verify(body, request.getHeader("${header}"), secret)
static boolean verify(byte[] body, String header, String secret) throws GeneralSecurityException {
  Mac mac = Mac.getInstance("HmacSHA256");
  mac.init(new SecretKeySpec(secret.getBytes(UTF_8), "HmacSHA256"));
  String expected = "sha256=" + HexFormat.of().formatHex(mac.doFinal(body));
  return MessageDigest.isEqual(expected.getBytes(UTF_8), String.valueOf(header).getBytes(UTF_8));
}`,
  },
];

/** RFC 3875 section 4.1.18: the environment variable of a header in CGI. */
function serverVariable(header: string): string {
  return `HTTP_${header.toUpperCase().replaceAll('-', '_')}`;
}
