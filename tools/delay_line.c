// A cable with latency, for kernels without netem: two TUN devices, one in each network namespace, and what is sent into one comes out of
// the other after a time. Both directions wait busily, a thread each, so that the time is right within microseconds.
//   cc -O2 -pthread -o delay_line tools/delay_line.c
//   delay_line MICROSECONDS NAMESPACE DEVICE NAMESPACE DEVICE    (files of namespaces; as root; prints "up"; ends with its parent)
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1024, ROOM = 66 << 10 };  // packets under way in one direction; bytes of the largest one, with its header
static int64_t delay_ns;

typedef struct {
  int from, to;
} Direction;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void need(int result, const char* what) {
  if (result >= 0) return;
  fprintf(stderr, "delay_line: %s: %s\n", what, strerror(errno));
  exit(1);
}

// Segments of 64 kB go through in one piece, with their checksums left open.
static int device(const char* space, const char* name) {
  const int where = open(space, O_RDONLY);
  need(where, space);
  need(setns(where, CLONE_NEWNET), space);
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  need(tun, "/dev/net/tun");
  struct ifreq wanted = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
  strncpy(wanted.ifr_name, name, IFNAMSIZ - 1);
  need(ioctl(tun, TUNSETIFF, &wanted), name);
  need(ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6), "offload");
  close(where);
  return tun;
}

static void* carry(void* argument) {
  const Direction* const way = argument;
  char* const packets = malloc((size_t)SLOTS * ROOM);
  int64_t due[SLOTS];
  ssize_t size[SLOTS];
  uint64_t first = 0, end = 0;
  if (!packets) exit(1);
  for (;;) {
    if (end - first < SLOTS) {
      const int slot = end % SLOTS;
      size[slot] = read(way->from, packets + (size_t)slot * ROOM, ROOM);
      if (size[slot] > 0) due[slot] = now() + delay_ns, ++end;
      else if (size[slot] < 0 && errno != EAGAIN && errno != EINTR) need(-1, "read");
    }
    if (first < end && due[first % SLOTS] <= now()) {
      const int slot = first % SLOTS;
      const ssize_t sent = write(way->to, packets + (size_t)slot * ROOM, size[slot]);
      if (sent >= 0 || errno != EAGAIN) ++first;  // what the other side refuses is lost, as on a cable
    }
  }
}

int main(int count, char** words) {
  if (count != 6) {
    fprintf(stderr, "usage: delay_line MICROSECONDS NAMESPACE DEVICE NAMESPACE DEVICE\n");
    return 2;
  }
  need(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");  // else two cores would wait busily for nobody
  delay_ns = atoll(words[1]) * 1000;
  const int left = device(words[2], words[3]), right = device(words[4], words[5]);
  Direction ways[] = {{left, right}, {right, left}};
  pthread_t back;
  need(-pthread_create(&back, NULL, carry, &ways[1]), "thread");
  puts("up");
  fflush(stdout);
  carry(&ways[0]);
}
