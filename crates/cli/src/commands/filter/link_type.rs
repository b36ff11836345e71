//! Link types by the names that libpcap gives them.

use retroscope_packet::LinkType;

/// The link type that a user means: libpcap's name for it (`EN10MB`, also `DLT_EN10MB`), in any case, or the number that
/// capture files have for it ([registry](https://www.tcpdump.org/linktypes.html)).
///
/// # Errors
/// A sentence that says what to write instead.
pub(super) fn parse(text: &str) -> Result<LinkType, String> {
    if let Ok(number) = text.parse() {
        return Ok(LinkType(number));
    }
    let upper = text.to_ascii_uppercase();
    let wanted = upper.strip_prefix("DLT_").unwrap_or(&upper);
    let found = NAMES.iter().find(|(name, _)| *name == wanted);
    found.map(|(_, number)| LinkType(*number)).ok_or_else(|| {
        "no such link type: write a name such as EN10MB, RAW or LINUX_SLL2, or its number"
            .to_owned()
    })
}

/// libpcap's name for a link type, or its number where there is no name.
pub(super) fn name(link_type: LinkType) -> String {
    let found = NAMES.iter().find(|(_, number)| *number == link_type.0);
    found.map_or_else(|| link_type.0.to_string(), |(name, _)| (*name).to_owned())
}

/// libpcap's name of each link type (pcap_datalink_val_to_name(3) of libpcap 1.10) and its number in capture files.
const NAMES: [(&str, u16); 152] = [
    ("NULL", 0),
    ("EN10MB", 1),
    ("IEEE802", 6),
    ("ARCNET", 7),
    ("SLIP", 8),
    ("PPP", 9),
    ("FDDI", 10),
    ("PPP_SERIAL", 50),
    ("PPP_ETHER", 51),
    ("SYMANTEC_FIREWALL", 99),
    ("ATM_RFC1483", 100),
    ("RAW", 101),
    ("SLIP_BSDOS", 102),
    ("PPP_BSDOS", 103),
    ("C_HDLC", 104),
    ("IEEE802_11", 105),
    ("ATM_CLIP", 106),
    ("FRELAY", 107),
    ("LOOP", 108),
    ("ENC", 109),
    ("LINUX_SLL", 113),
    ("LTALK", 114),
    ("PFLOG", 117),
    ("PRISM_HEADER", 119),
    ("IP_OVER_FC", 122),
    ("SUNATM", 123),
    ("IEEE802_11_RADIO", 127),
    ("ARCNET_LINUX", 129),
    ("JUNIPER_MLPPP", 130),
    ("JUNIPER_MLFR", 131),
    ("JUNIPER_ES", 132),
    ("JUNIPER_GGSN", 133),
    ("JUNIPER_MFR", 134),
    ("JUNIPER_ATM2", 135),
    ("JUNIPER_SERVICES", 136),
    ("JUNIPER_ATM1", 137),
    ("APPLE_IP_OVER_IEEE1394", 138),
    ("MTP2_WITH_PHDR", 139),
    ("MTP2", 140),
    ("MTP3", 141),
    ("SCCP", 142),
    ("DOCSIS", 143),
    ("LINUX_IRDA", 144),
    ("IEEE802_11_RADIO_AVS", 163),
    ("JUNIPER_MONITOR", 164),
    ("BACNET_MS_TP", 165),
    ("PPP_PPPD", 166),
    ("JUNIPER_PPPOE", 167),
    ("JUNIPER_PPPOE_ATM", 168),
    ("GPRS_LLC", 169),
    ("GPF_T", 170),
    ("GPF_F", 171),
    ("JUNIPER_PIC_PEER", 174),
    ("ERF_ETH", 175),
    ("ERF_POS", 176),
    ("LINUX_LAPD", 177),
    ("JUNIPER_ETHER", 178),
    ("JUNIPER_PPP", 179),
    ("JUNIPER_FRELAY", 180),
    ("JUNIPER_CHDLC", 181),
    ("MFR", 182),
    ("JUNIPER_VP", 183),
    ("A429", 184),
    ("A653_ICM", 185),
    ("USB_FREEBSD", 186),
    ("BLUETOOTH_HCI_H4", 187),
    ("IEEE802_16_MAC_CPS", 188),
    ("USB_LINUX", 189),
    ("CAN20B", 190),
    ("IEEE802_15_4_LINUX", 191),
    ("PPI", 192),
    ("IEEE802_16_MAC_CPS_RADIO", 193),
    ("JUNIPER_ISM", 194),
    ("IEEE802_15_4", 195),
    ("SITA", 196),
    ("ERF", 197),
    ("RAIF1", 198),
    ("IPMB_KONTRON", 199),
    ("JUNIPER_ST", 200),
    ("BLUETOOTH_HCI_H4_WITH_PHDR", 201),
    ("AX25_KISS", 202),
    ("IPMB_LINUX", 209),
    ("IEEE802_15_4_NONASK_PHY", 215),
    ("LINUX_EVDEV", 216),
    ("MPLS", 219),
    ("USB_LINUX_MMAPPED", 220),
    ("DECT", 221),
    ("AOS", 222),
    ("WIHART", 223),
    ("FC_2", 224),
    ("FC_2_WITH_FRAME_DELIMS", 225),
    ("IPNET", 226),
    ("CAN_SOCKETCAN", 227),
    ("IPV4", 228),
    ("IPV6", 229),
    ("IEEE802_15_4_NOFCS", 230),
    ("DBUS", 231),
    ("JUNIPER_VS", 232),
    ("JUNIPER_SRX_E2E", 233),
    ("JUNIPER_FIBRECHANNEL", 234),
    ("DVB_CI", 235),
    ("MUX27010", 236),
    ("STANAG_5066_D_PDU", 237),
    ("JUNIPER_ATM_CEMIC", 238),
    ("NFLOG", 239),
    ("NETANALYZER", 240),
    ("NETANALYZER_TRANSPARENT", 241),
    ("IPOIB", 242),
    ("MPEG_2_TS", 243),
    ("NG40", 244),
    ("NFC_LLCP", 245),
    ("PFSYNC", 246),
    ("INFINIBAND", 247),
    ("SCTP", 248),
    ("USBPCAP", 249),
    ("RTAC_SERIAL", 250),
    ("BLUETOOTH_LE_LL", 251),
    ("NETLINK", 253),
    ("BLUETOOTH_LINUX_MONITOR", 254),
    ("BLUETOOTH_BREDR_BB", 255),
    ("BLUETOOTH_LE_LL_WITH_PHDR", 256),
    ("PROFIBUS_DL", 257),
    ("PKTAP", 258),
    ("EPON", 259),
    ("IPMI_HPM_2", 260),
    ("ZWAVE_R1_R2", 261),
    ("ZWAVE_R3", 262),
    ("WATTSTOPPER_DLM", 263),
    ("ISO_14443", 264),
    ("RDS", 265),
    ("USB_DARWIN", 266),
    ("OPENFLOW", 267),
    ("SDLC", 268),
    ("TI_LLN_SNIFFER", 269),
    ("VSOCK", 271),
    ("NORDIC_BLE", 272),
    ("DOCSIS31_XRA31", 273),
    ("ETHERNET_MPACKET", 274),
    ("DISPLAYPORT_AUX", 275),
    ("LINUX_SLL2", 276),
    ("OPENVIZSLA", 278),
    ("EBHSCR", 279),
    ("VPP_DISPATCH", 280),
    ("DSA_TAG_BRCM", 281),
    ("DSA_TAG_BRCM_PREPEND", 282),
    ("IEEE802_15_4_TAP", 283),
    ("DSA_TAG_DSA", 284),
    ("DSA_TAG_EDSA", 285),
    ("ELEE", 286),
    ("Z_WAVE_SERIAL", 287),
    ("USB_2_0", 288),
    ("ATSC_ALP", 289),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (text, number) in [
            ("EN10MB", 1),
            ("en10mb", 1),
            ("DLT_RAW", 101),
            ("linux_sll2", 276),
            ("0", 0),
            ("147", 147),
            ("65535", 65_535),
        ] {
            assert_eq!(parse(text), Ok(LinkType(number)), "{text}");
        }
        for bad in ["", "EN10", "-1", "65536", "1.0", "DLT_"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_name_and_number_occurs_once() {
        for (index, (name, number)) in NAMES.iter().enumerate() {
            let same = |(other, value): &&(&str, u16)| other == name || value == number;
            assert_eq!(
                NAMES.iter().filter(same).count(),
                1,
                "{index}: {name} {number}"
            );
        }
    }

    #[test]
    fn some_have_no_name() {
        assert_eq!(name(LinkType::RAW), "RAW");
        assert_eq!(name(LinkType(147)), "147");
    }
}
